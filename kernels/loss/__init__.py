"""Triton kernels of the loss."""
