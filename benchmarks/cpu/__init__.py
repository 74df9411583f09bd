"""CPU benchmarks of encoders and matmuls."""
