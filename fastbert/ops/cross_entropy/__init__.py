"""The vocabulary product fused with cross-entropy."""
