"""Triton kernels of softmax."""
