"""The intermediate representation: values, nodes, graphs, ops and types."""
