"""fastbert's kernels under models of other libraries: transformers, sentence-transformers, torch.nn."""
