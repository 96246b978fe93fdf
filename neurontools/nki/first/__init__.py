"""The first generation of NKI (`neuronxcc.nki`): kernels run eagerly, tiles are values, indices and masks are affine."""
