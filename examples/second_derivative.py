"""A gradient is a graph of ops, so it can be differentiated again: a Hessian-vector product."""

import numpy as np

import graphc

x = graphc.input("x", (3,), "float64")
v = graphc.input("v", (3,), "float64")
energy = graphc.sum(x**4 + graphc.exp(x))
(slope,) = graphc.gradient(energy, [x])
(curvature,) = graphc.gradient(graphc.sum(slope * v), [x])

program = graphc.compile(outputs={"slope": slope, "curvature": curvature})
at, direction = np.array([0.0, 1.0, 2.0]), np.array([1.0, 0.5, 0.25])
found = program.step(x=at, v=direction)
print("slope      ", found["slope"])
print("closed form", 4 * at**3 + np.exp(at))
print("curvature  ", found["curvature"])
print("closed form", (12 * at**2 + np.exp(at)) * direction)
