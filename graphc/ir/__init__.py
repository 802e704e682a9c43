"""The symbolic representation: values, nodes, graphs, ops, and the memory plan."""
