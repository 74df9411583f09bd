"""jina-embeddings v3."""
