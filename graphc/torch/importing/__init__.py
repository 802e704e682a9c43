"""Import of PyTorch modules as networks of graphc."""
