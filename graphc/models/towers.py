"""Two-tower retrieval networks, which are joined by a product (Huang et al., 2013)."""

from __future__ import annotations

from graphc.errors import OptionError
from graphc.ir.builder import constant, input, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ops.activation import relu
from graphc.ops.cross_entropy import softmax_cross_entropy
from graphc.ops.embedding import gather
from graphc.ops.matmul import linear, matmul
from graphc.ops.reduce import mean


def two_tower(
    batch: int = 256,
    layers: int = 6,
    width: int = 512,
    rows: int = 20000,
    words: int = 16,
    dtype: str = "float32",
) -> Value:
    """Two-tower retrieval network for queries and items (Huang et al., 2013; Yi et al., 2019).

    It is trained to find each query's item among the items of the batch. Each tower takes the mean
    of rows of its own table, followed by `layers` linear layers of `width`. Inputs: ``queries`` and
    ``items``, both (batch, words), int32, below `rows`.
    """
    if layers < 1:
        raise OptionError(f"two_tower: a tower needs at least one layer, got layers={layers}")
    query, item = (
        _tower(name, batch, layers, width, rows, words, dtype) for name in ("queries", "items")
    )
    scores = matmul(query, item, transpose_b=True)
    return softmax_cross_entropy(scores, constant(list(range(batch)), dtype="int32"))


def _tower(
    name: str, batch: int, layers: int, width: int, rows: int, words: int, dtype: str
) -> Value:
    numbers = input(name, (batch, words), dtype="int32")
    with scope(name):
        table = parameter("table", (rows, width), dtype, Initial("normal", 0.05))
        h = mean(gather(table, numbers), 1)
        for layer in range(layers):
            with scope(f"layer{layer}"):
                h = linear(h, width)
                h = relu(h) if layer < layers - 1 else h
    return h
