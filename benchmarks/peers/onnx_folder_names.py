"""Where a contender finds the export that `fastbert.benchmarks.peers.onnx_folder` wrote into its temporary folder."""

FOLDER = "onnx-folder"
MODEL = "onnx/model.onnx"
