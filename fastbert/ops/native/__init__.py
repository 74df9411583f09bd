"""Code shared by the native backends: matmul, prepacked weights, row-wise kernels, the caching allocator."""
