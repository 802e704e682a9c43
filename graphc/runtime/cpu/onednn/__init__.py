"""oneDNN on the CPU: products and convolutions as primitives on the arena's own addresses."""
