"""GELU with a bias."""
