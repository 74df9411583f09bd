"""Triton kernels of GELU."""
