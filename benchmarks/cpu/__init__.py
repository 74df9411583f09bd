"""CPU benchmarks of encoders and products."""
