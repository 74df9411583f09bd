"""Training of embedders and rerankers beside sentence-transformers: the same examples, weights, batches and steps."""
