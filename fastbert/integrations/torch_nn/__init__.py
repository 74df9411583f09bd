"""torch.nn's encoders on fastbert's kernels."""
