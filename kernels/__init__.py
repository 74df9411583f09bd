"""Triton kernels, installed as `fastbert.kernels`: one file per fused pattern."""
