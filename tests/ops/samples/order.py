"""Rows of orders, running sums, and elements by number."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import Sample, direct

import graphc as g
from graphc.ops import scatter

SHAPE = (2, 5, 3)
READS = {"dy", "indices"}


def ranked(x):
    places = np.argsort(-x, 1, kind="stable")[:, :2]
    return np.take_along_axis(x, places, 1), places


def last_places(x):
    return (4 - np.flip(x, 1).argmin(1)).astype(np.int32)


def summed_backwards(x):
    return np.flip(np.cumsum(np.flip(x, 1), 1), 1) - x


def tuples(indices):
    """An index of NumPy: batch, then the numbers of each tuple."""
    return (np.arange(2)[:, None], *np.moveaxis(indices, -1, 0))


def scattered(ufunc):
    def reference(x, indices, updates):
        y = x.copy()
        ufunc.at(y, tuples(indices), updates)
        return y

    return reference


def replaced(x, indices, updates):
    y = x.copy()
    for entry in range(2):
        for lookup in range(4):
            y[(entry, *indices[entry, lookup])] = updates[entry, lookup]
    return y


def scatter_row(name, reference, reads, **options):
    (op,) = (op for op in scatter.SCATTERS.values() if op.name == name)
    return Sample(
        name, direct(op, scatter.TupleAttributes(1)), ((2, 3, 3, 2), (2, 4, 2), (2, 4, 2)),
        reference, reads, dtypes=("float64", "int64", "float64"), **options,
    )  # fmt: skip


EXTREME = {"dy", "x", "indices", "updates", "y"}

SAMPLES = [
    Sample("argmax", lambda x: g.argmax(x, 1), (SHAPE,), lambda x: x.argmax(1)),
    Sample(
        "argmin", lambda x: g.argmin(x, 1, last=True, dtype="int32"), (SHAPE,), last_places,
    ),
    Sample(
        "argmax", lambda x: g.argmax(x, 1), (SHAPE,), lambda x: x.argmax(1), dtypes=("uint8",),
        label=" ties",
    ),
    Sample(
        "argmin", lambda x: g.argmin(x, 1, last=True, dtype="int32"), (SHAPE,), last_places,
        dtypes=("int32",), label=" ties",
    ),
    Sample("top_k", lambda x: g.top_k(x, 2, 1), (SHAPE,), ranked, {"x": {"dy", "places"}}),
    Sample(
        "top_k", lambda x: g.top_k(x, 2, 1), (SHAPE,), lambda x: ranked(x.astype(int)),
        dtypes=("int32",), label=" ties",
    ),
    Sample("cumsum", lambda x: g.cumsum(x, 1), (SHAPE,), lambda x: x.cumsum(1), {"x": {"dy"}}),
    Sample(
        "cumsum", lambda x: g.cumsum(x, 1, exclusive=True, reverse=True), (SHAPE,),
        summed_backwards, {"x": {"dy"}}, label=" before",
    ),
    Sample(
        "gather_nd", lambda x, i: g.gather_nd(x, i, 1), ((2, 3, 3, 2), (2, 10, 2)),
        lambda x, i: x[tuples(i)], {"x": READS}, dtypes=("float64", "int32"),
    ),
    scatter_row("scatter_nd", replaced, {"x": READS, "updates": READS}),
    scatter_row("scatter_nd_add", scattered(np.add), {"x": {"dy"}, "updates": READS}),
    scatter_row(
        "scatter_nd_mul", scattered(np.multiply),
        {"x": {"dy", "indices", "updates"}, "updates": {"dy", "x", "indices", "updates"}},
        domain=(0.5, 2),
    ),
    scatter_row("scatter_nd_max", scattered(np.maximum), {"x": EXTREME, "updates": EXTREME}),
    scatter_row("scatter_nd_min", scattered(np.minimum), {"x": EXTREME, "updates": EXTREME}),
]  # fmt: skip
