"""The recurrent network measured by Chen et al. (2016): four LSTM layers over time."""

from __future__ import annotations

import math

from graphc.ir.builder import input, parameter, scope
from graphc.ir.graph import Initial, Value
from graphc.ops.cross_entropy import softmax_cross_entropy
from graphc.ops.elementwise import add, scale
from graphc.ops.matmul import affine
from graphc.ops.recurrent import CellParameters, lstm_cell, lstm_layer, lstm_parameters


def lstm(
    seq_len: int = 64,
    batch: int = 64,
    layers: int = 4,
    hidden: int = 1024,
    inputs: int = 50,
    classes: int = 5000,
    dtype: str = "float32",
    by_layer: bool = False,
) -> Value:
    """LSTM layers unrolled over time with shared weights, as measured by Chen et al. (2016).

    Each time step maps its input to `hidden` numbers (without bias), applies the cells (Hochreiter
    and Schmidhuber, 1997), and classifies. The loss is the mean over steps. Inputs: ``x`` (seq_len,
    batch, inputs) and ``labels`` (seq_len, batch), int32.

    By default each time step runs all layers, which needs the least memory. With `by_layer`, each
    layer runs over all steps before the next one, which is faster.
    """
    x = input("x", (seq_len, batch, inputs), dtype)
    labels = input("labels", (seq_len, batch), dtype="int32")
    with scope("embed"):
        bound = Initial("uniform", math.sqrt(6 / inputs))
        embed = parameter("weight", (hidden, inputs), dtype, bound)
    cells: list[CellParameters] = []
    states: list[tuple[Value, Value]] = []
    for layer in range(layers):
        with scope(f"layer{layer}"):
            cells.append(lstm_parameters(hidden, hidden, dtype))
            zero = [
                parameter(f"initial_{n}", (batch, hidden), dtype, trainable=False) for n in "hc"
            ]
            states.append((zero[0], zero[1]))
    with scope("output"):
        bound = Initial("uniform", hidden**-0.5)
        weight = parameter("weight", (classes, hidden), dtype, bound)
        bias = parameter("bias", (classes,), dtype)
    if by_layer:
        h = affine(x, embed)
        for layer, cell in enumerate(cells):
            with scope(f"layer{layer}"):
                h, *_ = lstm_layer(h, *states[layer], cell)
        with scope("output"):
            return softmax_cross_entropy(affine(h, weight, bias), labels)
    total: Value | None = None
    for step in range(seq_len):
        with scope(f"step{step}"):
            h = affine(x[step], embed)
            for layer, cell in enumerate(cells):
                with scope(f"layer{layer}"):
                    states[layer] = lstm_cell(h, *states[layer], cell)
                h = states[layer][0]
            with scope("output"):
                loss = softmax_cross_entropy(affine(h, weight, bias), labels[step])
            total = loss if total is None else add(total, loss)
    assert total is not None, "seq_len is at least 1"
    return scale(total, 1 / seq_len)
