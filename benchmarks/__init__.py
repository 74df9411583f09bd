"""Benchmarks of fastbert against its alternatives, installed as `fastbert.benchmarks` and run by path."""
