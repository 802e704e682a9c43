"""Rows of fused elementwise nodes and fused reductions."""

from __future__ import annotations

import numpy as np
import scipy.special
from ops.samples.sample import M, N, Sample, direct

from graphc.ops import fused
from graphc.ops.fused_reduce import FusedReduce, FusedReduceAttributes


def lstm_tail(f, c, i, g):
    gates = [scipy.special.expit(x) for x in (f, i)]
    c_new = gates[0] * c + gates[1] * np.tanh(g)
    return gates[0], c_new, np.tanh(c_new)


GROUPS = [
    (
        "row", ("add(x0, x1)", "relu(m0)", "scale(m1, value=0.5)"), (2,), (M, N),
        lambda x, b: np.maximum(x + b, 0) / 2, (),
    ),
    (
        "cell",
        ("sigmoid(x0)", "mul(m0, x1)", "sigmoid(x2)", "tanh(x3)", "mul(m2, m3)", "add(m1, m4)",
         "tanh(m5)"),
        (0, 5, 6), (M, M, M, M), lstm_tail, (),
    ),
    (
        "early", ("mul(x0, x1)", "sub(x1, m0)", "power(x0, value=3.0)"), (0, 1, 2), (M, M),
        lambda a, b: (a * b, b - a * b, a**3), (),
    ),
    (
        "choice", ("less(x0, x1)", "neg(x1)", "where(m0, x0, m1)"), (0, 2), (M, M),
        lambda a, b: (a < b, np.where(a < b, a, -b)), (),
    ),
    (
        "functions",
        ("sin(x0)", "isnan(x1)", "where(m1, m0, x1)", "elu(m2, alpha=0.5)", "pow(x1, 2.0)",
         "mul(m3, m4)"),
        (1, 5), (M, M),
        lambda a, b: (b != b, np.where(b > 0, b, (np.exp(b) - 1) / 2) * b**2), (),
    ),
    (
        "mask", ("where(x0, x1, x2)", "shift(m0, value=-1.5)"), (1,), (M, M, ()),
        lambda m, a, b: np.where(m, a, b) - 1.5, ("bool", "float64", "float64"),
    ),
]  # fmt: skip
"""Label, members, results, shapes, reference and dtypes of fused nodes."""


MAPS = (2, 3, 4, 5)


REDUCED_GROUPS = [
    (
        "sum", ("mul(x0, x1)", "relu(m0)"), ("sum", (0,), False, (0, 1), ()), (M, N),
        lambda x, b: np.maximum(x * b, 0).sum(0), (),
    ),
    (
        "mean", ("sub(x0, x1)", "mul(m0, m0)"), ("mean", (0, 2, 3), True, (0, 2, 3, 1), ()),
        (MAPS, (3, 1, 1)), lambda x, b: ((x - b) ** 2).mean((0, 2, 3), keepdims=True), (),
    ),
    (
        "max", ("less(x0, x1)", "neg(x1)", "where(m0, x0, m1)"), ("max", (1,), False, (1, 0), ()),
        (M, M), lambda a, b: np.where(a < b, a, -b).max(1), (),
    ),
    (
        "square_sum", ("scale(x0, value=0.5)",), ("square_sum", (0, 1), False, (0, 1), ()),
        (M,), lambda x: (x**2).sum() / 4, (),
    ),
    (
        "after", ("neg(x0)",), ("sum", (1,), True, (0, 1), ("scale(x0, value=0.5)", "mul(m0, x0)")),
        (M,), lambda x: x.sum(1, keepdims=True) ** 2 / 2, (),
    ),
    (
        "root", (), ("square_sum", (0, 1), False, (0, 1), ("sqrt(x0)", "maximum(m0, 1.5)")),
        (M,), lambda x: np.maximum(np.sqrt((x**2).sum()), 1.5), (),
    ),
    (
        "mask", ("where(x0, x1, x2)",), ("sum", (0, 1), False, (0, 1), ()), (M, M, ()),
        lambda m, a, b: np.where(m, a, b).sum(), ("bool", "float64", "float64"),
    ),
]  # fmt: skip
"""Label, members, how they are reduced, shapes, reference and dtypes of fused reductions."""


SAMPLES = [
    *(
        Sample(
            "fused", direct(fused.Fused, fused.FusedAttributes(members, results)), shapes,
            reference, label=f" {label}", dtypes=dtypes,
        )
        for label, members, results, shapes, reference, dtypes in GROUPS
    ),
    *(
        Sample(
            "fused_reduce", direct(FusedReduce, FusedReduceAttributes(members, *reduction)), shapes,
            reference, label=f" {label}", dtypes=dtypes,
        )
        for label, members, reduction, shapes, reference, dtypes in REDUCED_GROUPS
    ),
]  # fmt: skip
