"""Rows of fused attention at sizes of several tiles."""

from ops.samples import direct

from graphc.ops.dropped_attention import (
    DroppedAttention,
    DroppedAttentionGradient,
    DroppedAttributes,
)
from graphc.ops.fused_attention import Attention, AttentionGradient
from graphc.ops.tiled_attention import AttentionAttributes

FLOAT = "float64"
FLAT = AttentionAttributes(0.05, False)
CAUSAL = AttentionAttributes(0.05, True)
FROM_FIRST = AttentionAttributes(0.05, True, True)
SHARED = ((1, 4, 70, 8), (1, 2, 40, 8), (1, 2, 40, 8))
"""Two heads of queries for each of keys, and more rows than columns."""
QUERIES, KEYS, VALUES = (1, 2, 37, 72), (1, 2, 101, 72), (1, 2, 101, 40)
"""Several tiles of rows and of columns, and rows of more than one chunk."""
TILES = (
    ((1, 1, 130, 16), (1, 1, 150, 16), (1, 1, 150, 24)),
    ((1, 1, 70, 20), (1, 1, 90, 20), (1, 1, 90, 6)),
    ((1, 1, 17, 128), (1, 1, 35, 128), (1, 1, 35, 128)),
)
"""Several blocks that own rows or columns; rows that are no whole packs; rows of the most elements
on tensor cores."""
BACK = ((1, 2, 37, 40), QUERIES, KEYS, VALUES, (1, 2, 37, 40), (1, 2, 37))


DROPPED = tuple(
    (DroppedAttributes(0.05, causal, rate=0.3, stream=6), shapes)
    for causal, shapes in (
        (True, ((1, 1, 130, 16), (1, 1, 152, 16), (1, 1, 152, 24))),
        (False, ((1, 2, 70, 16), (1, 1, 91, 16), (1, 1, 91, 24))),
        (True, ((1, 4, 70, 16), (1, 2, 92, 16), (1, 2, 92, 24))),
    )
)
"""Columns in whole blocks of four, and others; the latter with keys that heads share."""
FULL = ((1, 1, 64, 16), (1, 1, 128, 16), (1, 1, 128, 24))
"""Full tiles only."""
NEGATIVE = AttentionAttributes(-0.05, True)
UNSEEN = ((1, 2, 64, 16), (1, 2, 192, 16), (1, 2, 192, 24))
"""More columns than rows: from the first on, no row attends to the last columns."""


def both(long, a, shapes):
    """Rows of attention, and of its gradient."""
    queries, keys, values = shapes
    y = (*queries[:3], values[3])
    counters, ops, name = (), (Attention, AttentionGradient), "attention"
    if isinstance(a, DroppedAttributes):
        counters, name = ((2,), ()), "dropped_attention"
        ops = (DroppedAttention, DroppedAttentionGradient)
    kinds = ("int64",) * len(counters)
    forward, back = shapes, (y, queries, keys, values, y, queries[:3])
    return [
        long(each, direct(op, a), (*given, *counters), (*(FLOAT,) * len(given), *kinds))
        for each, op, given in ((name, ops[0], forward), (f"{name}_gradient", ops[1], back))
    ]


def attention_cases(long):
    """Rows that `long` makes of an op, how it is built, shapes, dtypes and a label."""
    return [
        long("attention", direct(Attention, FLAT), (QUERIES, KEYS, VALUES)),
        long(
            "attention",
            direct(Attention, CAUSAL),
            (QUERIES, KEYS, VALUES),
            (),
            " causal",
        ),
        long("attention", direct(Attention, CAUSAL), ((1, 1, 66, 8),) * 3),
        long("attention_gradient", direct(AttentionGradient, FLAT), BACK),
        long(
            "attention_gradient",
            direct(AttentionGradient, CAUSAL),
            BACK,
            (),
            " causal",
        ),
        long(
            "attention_gradient",
            direct(AttentionGradient, CAUSAL),
            (*((1, 1, 66, 8),) * 5, (1, 1, 66)),
        ),
        *[row for shapes in TILES for row in both(long, CAUSAL, shapes)],
        *[row for a in (FLAT, NEGATIVE) for row in both(long, a, FULL)],
        *both(long, FROM_FIRST, UNSEEN),
        *[row for a, shapes in DROPPED for row in both(long, a, shapes)],
        *[
            long(
                name,
                direct(op, a),
                shapes,
                (*(FLOAT,) * (len(shapes) - 1), kind),
                f" shared {kind}",
            )
            for a, kind in ((FLAT, "bool"), (FROM_FIRST, FLOAT))
            for name, op, shapes in (
                ("attention", Attention, (*SHARED, (1, 1, 70, 40))),
                (
                    "attention_gradient",
                    AttentionGradient,
                    (SHARED[0], *SHARED, SHARED[0], (1, 4, 70), (1, 4, 1, 40)),
                ),
            )
        ],
    ]
