"""Softmax over explicit scores."""
