"""What native backends share: matmul, prepacked weights, row-wise kernels, the caching allocator."""
