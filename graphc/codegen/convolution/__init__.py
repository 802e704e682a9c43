"""Convolutions as BLAS products with the unfolded input, and as direct kernels without a BLAS."""
