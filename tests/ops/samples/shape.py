"""Rows of what moves elements, and of reductions."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import M, Sample, direct

import graphc as g
from graphc.ops import shape
from graphc.ops.reduce import square_sum


def padded(x):
    out = np.zeros((4, 5))
    out[1:4:2, 0:3:1] = x
    return out


WHOLE = shape.PadSliceAttributes((4, 5), (1, 0), (4, 3), (2, 1))


SAMPLES = [
    # shape
    Sample(
        "full", lambda: g.full((3, 2), -(2**50), "int64"), (),
        lambda: np.full((3, 2), -(2**50)), label=" of integers",
    ),
    Sample(
        "full", lambda: g.full((3,), True, "bool"), (), lambda: np.full((3,), True),
        label=" of bool",
    ),
    Sample("full", lambda: g.full((3, 2), 1.5, "float64"), (), lambda: np.full((3, 2), 1.5)),
    Sample(
        "reshape", lambda x: g.reshape(x, (2, -1)), (M,), lambda x: x.reshape(2, 6), {"x": {"dy"}}
    ),
    Sample("copy", direct(shape.Copy), (M,), lambda x: x, {"x": {"dy"}}),
    Sample(
        "transpose", lambda x: g.transpose(x, (2, 0, 1)), ((2, 3, 4),),
        lambda x: x.transpose(2, 0, 1), {"x": {"dy"}},
    ),
    Sample(
        "broadcast_to", lambda x: g.broadcast_to(x, (2, 3, 4)), ((3, 1),),
        lambda x: np.broadcast_to(x, (2, 3, 4)), {"x": {"dy"}},
    ),
    Sample("slice", lambda x: x[1:4:2, :3], ((4, 5),), lambda x: x[1:4:2, :3], {"x": {"dy"}}),
    Sample(
        "reverse", lambda x: g.reverse(x, (0, -1)), ((2, 3, 4),), lambda x: x[::-1, :, ::-1],
        {"x": {"dy"}},
    ),
    Sample("pad_slice", direct(shape.PadSlice, WHOLE), ((2, 3),), padded, {"x": {"dy"}}),
    Sample(
        "pad_slice", lambda x: g.pad(x, ((1, 0), (0, 2)), value=-1.5), ((2, 3),),
        lambda x: np.pad(x, ((1, 0), (0, 2)), constant_values=-1.5), {"x": {"dy"}}, label=" filled",
    ),
    Sample(
        "concat", lambda *x: g.concat(x, 1), (M, (3, 1), (3, 2)),
        lambda *x: np.concatenate(x, 1), {"parts": {"dy"}},
    ),
    Sample(
        "split", lambda x: g.split(x, [1, 3], 1), (M,),
        lambda x: (x[:, :1], x[:, 1:]), {"x": {"dparts"}},
    ),
    # reductions
    Sample("sum", lambda x: g.sum(x, 1), ((2, 3, 4),), lambda x: x.sum(1), {"x": {"dy"}}),
    Sample("sum", g.sum, (M,), np.sum, {"x": {"dy"}}, label=" all"),
    Sample(
        "mean", lambda x: g.mean(x, (0, 2), True), ((2, 3, 4),),
        lambda x: x.mean((0, 2), keepdims=True), {"x": {"dy"}},
    ),
    Sample("square_sum", square_sum, (M,), lambda x: (x**2).sum(), {"x": {"dy", "x"}}),
    Sample("max", lambda x: g.max(x, -1), (M,), lambda x: x.max(-1), {"x": {"dy", "x", "y"}}),
    Sample("min", lambda x: g.min(x, 0), (M,), lambda x: x.min(0), {"x": {"dy", "x", "y"}}),
    Sample("max", lambda x: g.any(x, 1), (M,), lambda x: x.any(1), dtypes=("bool",), label=" any"),
    Sample("min", lambda x: g.all(x, 1), (M,), lambda x: x.all(1), dtypes=("bool",), label=" all"),
]  # fmt: skip
