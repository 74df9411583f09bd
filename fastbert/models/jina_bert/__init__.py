"""JinaBERT v2."""
