"""Gated activations (GeGLU, SwiGLU and their kin)."""
