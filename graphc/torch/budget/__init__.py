"""Memory plans for PyTorch's own training: recomputation within a budget for an existing module."""
