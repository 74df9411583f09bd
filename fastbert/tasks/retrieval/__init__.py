"""Tasks of retrieval: embedders, rerankers, sparse vectors and vectors of tokens, trained on groups of texts."""
