"""Triton kernels of the LayerNorm family."""
