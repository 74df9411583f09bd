"""Triton kernels of embeddings."""
