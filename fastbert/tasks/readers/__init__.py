"""Readers of the files that tasks come in."""
