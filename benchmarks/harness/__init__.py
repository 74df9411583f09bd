"""Timing, comparison, processes, records and reports, shared by all benchmarks."""
