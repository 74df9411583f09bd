"""Sum of embeddings with LayerNorm."""
