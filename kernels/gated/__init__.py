"""Triton kernels of gated activations."""
