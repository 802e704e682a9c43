"""Steps on the CPU: native kernels, and NumPy, which is the reference and the fallback."""
