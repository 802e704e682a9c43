"""Programs of several ranks: who they are, what carries bytes between them, and sums over them."""
