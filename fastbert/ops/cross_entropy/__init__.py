"""The vocabulary matmul fused with cross-entropy."""
