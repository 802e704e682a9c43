"""Collectives of one rank; tests/runtime/ranks compares those of several with NumPy."""

from ops.samples.sample import M, Sample

import graphc as g

SAMPLES = [
    Sample("all_reduce", lambda x: g.all_reduce(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample("reduce_scatter", lambda x: g.reduce_scatter(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample("all_gather", lambda x: g.all_gather(x, 1), (M,), lambda x: x, {"x": {"dy"}}),
    Sample(
        "arrival", lambda x: g.all_reduce(x, 1), (M,), lambda x: x, {"x": {"dy"}, "reads": set()}
    ),
    Sample("broadcast", lambda x: g.broadcast(x, 1), (M,), lambda x: x),
]
