"""Memory allocation for a graph in a given order: layouts, storages, blocks and offsets."""
