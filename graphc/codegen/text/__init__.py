"""The text of a kernel: operands, index arithmetic, accesses, scalar code, loops over a grid."""
