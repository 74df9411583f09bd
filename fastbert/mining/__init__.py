"""Hard negatives for the training of embedders and rerankers."""
