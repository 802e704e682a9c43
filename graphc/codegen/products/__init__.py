"""Matrix products as calls of a BLAS."""
