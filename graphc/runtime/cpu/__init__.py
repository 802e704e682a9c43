"""NumPy on the CPU: the reference, and the fallback everywhere."""
