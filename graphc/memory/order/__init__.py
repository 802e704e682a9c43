"""Passes that change the order of nodes for memory or for copies beside computation."""
