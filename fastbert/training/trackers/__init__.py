"""Trackers of runs: TensorBoard, Weights & Biases and MLflow, fed with the lines of metrics.jsonl.

`tracked` in `recording` is the entry: it opens the trackers of a run or trial and returns hooks that feed them.
"""
