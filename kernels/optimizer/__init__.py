"""Triton kernels of the optimiser, and sums that are added to the gradients it reads."""
