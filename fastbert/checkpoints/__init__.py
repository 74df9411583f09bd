"""Checkpoints, read without trusting them: safetensors, pickles that are not executed, TensorFlow's; and written."""
