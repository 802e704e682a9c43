"""Rows of look-ups."""

from __future__ import annotations

import numpy as np
from ops.samples.sample import Sample, direct

import graphc as g
from graphc.ops import embedding


def scatter(dy, indices):
    table = np.zeros((5, *dy.shape[indices.ndim :]))
    np.add.at(table, indices, dy)
    return table


SAMPLES = [
    Sample(
        "gather", g.gather, ((5, 2), (2, 3)), lambda table, i: table[i],
        {"table": {"dy", "indices"}}, dtypes=("float64", "int32"), int_limit=5,
    ),
    Sample(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(5)),
        ((2, 3, 2), (2, 3)), scatter, {"dy": {"ddtable", "indices"}, "sum": {"ddtable"}},
        dtypes=("float64", "int64"), int_limit=5,
    ),
    Sample(
        "gather_gradient", direct(embedding.GatherGradient, embedding.RowsAttributes(5, True)),
        ((2, 3, 2), (2, 3), (5, 2)), lambda dy, i, sum: sum + scatter(dy, i),
        {"dy": {"ddtable", "indices"}, "sum": {"ddtable"}},
        dtypes=("float64", "int64", "float64"), int_limit=5, label="-accumulate",
    ),
    Sample(
        "one_hot", lambda i: g.one_hot(i, 3, "float64"), ((2, 4),), lambda i: np.eye(3)[i],
        dtypes=("uint8",),
    ),
]  # fmt: skip
