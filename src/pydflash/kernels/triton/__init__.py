"""Kernels for GPUs in Triton, each beside its reference of the same name in `kernels/ref`."""
