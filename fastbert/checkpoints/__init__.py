"""Read untrusted checkpoints (safetensors, pickles without executing them, TensorFlow) and write them atomically."""
