"""Sizes of a pre-training run before it starts: parameters, FLOPs, memory, communication and time."""
