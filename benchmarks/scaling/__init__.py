"""Scaling over threads, and processes that share cores: measurements, and a model of more threads."""
