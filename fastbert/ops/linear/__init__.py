"""Linear layers with an activation."""
