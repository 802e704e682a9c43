"""Matrix products as BLAS calls."""
