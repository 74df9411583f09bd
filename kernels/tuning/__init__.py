"""Tuning and ahead-of-time compilation of the Triton kernels."""
