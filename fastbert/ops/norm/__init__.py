"""LayerNorm, RMSNorm and their fusions."""
