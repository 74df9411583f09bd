"""Models as ONNX files: graphs built from the specs of architectures, checked in ONNX Runtime."""
