"""Triton kernels of the LayerNorm family and of RMSNorm."""
