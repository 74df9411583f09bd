"""Train embedders and rerankers beside sentence-transformers on the same examples, weights, batches and steps."""
