"""Convolutions as products of a BLAS with the unfolded input, and as kernels without a BLAS."""
