"""A whole encoder layer as one operation."""
