"""Attention with windows, rotary embeddings, biases by distance, relative positions and grouped heads."""
