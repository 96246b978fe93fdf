"""Kernels that come with the first generation of NKI: those that libraries need; others can only be imported."""
