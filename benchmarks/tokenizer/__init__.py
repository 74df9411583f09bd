"""Tokenizer benchmarks."""
