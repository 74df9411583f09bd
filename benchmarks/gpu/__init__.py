"""GPU benchmarks."""
