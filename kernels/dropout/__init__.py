"""Triton kernels of dropout."""
