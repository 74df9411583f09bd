"""Triton kernels of linear layers."""
