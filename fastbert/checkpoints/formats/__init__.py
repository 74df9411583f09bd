"""Read and write the formats of checkpoints: safetensors, pickles (without executing them), TensorFlow."""
