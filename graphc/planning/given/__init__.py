"""Recomputation for problems given as data: any graph, without the DSL."""
