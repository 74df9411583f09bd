"""Readers of task files."""
