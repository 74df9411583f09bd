"""The comparisons of the BERT paper and of the systems before it, at a chosen scale."""
