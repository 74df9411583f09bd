"""Fine-tuning benchmarks."""
