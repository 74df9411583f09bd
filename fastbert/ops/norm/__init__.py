"""LayerNorm and its fusions."""
