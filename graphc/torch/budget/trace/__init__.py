"""Tracing: the joint graph of a module, and what a trace depends on."""
