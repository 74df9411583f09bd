"""transformers' encoders on fastbert's kernels."""
