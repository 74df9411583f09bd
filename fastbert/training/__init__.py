"""Training: the pre-training loop, its optimiser and schedule, checkpoints, metrics and their picture.

The modules are imported where they are used; the configuration alone needs no torch.
"""
