"""The symbolic representation: values, nodes, graphs, ops and types."""
