"""Memory of a graph: layouts, storages, offsets, policies and budgets of recomputation."""
