"""From a graph in its order to a place for every value: layouts, storages, blocks, offsets."""
