"""Default configurations of the Triton kernels."""
