"""oneDNN on the CPU: products and convolutions as primitives on addresses in the arena."""
