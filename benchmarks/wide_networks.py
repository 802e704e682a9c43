"""Networks that many values cross wherever they are cut, beside those of the zoo.

Recurrent layers unrolled over time, whose weights' gradients add up from step to step, and
attention with skips from the first blocks to the last.
"""

from __future__ import annotations

import functools
import math

import graphc
from graphc.ir.graph import Initial, Value
from graphc.models.transformer import Block


def gru(
    seq_len: int = 64,
    batch: int = 64,
    layers: int = 4,
    hidden: int = 1024,
    inputs: int = 50,
    classes: int = 5000,
) -> Value:
    """The zoo's `lstm` with gated recurrent units (Cho et al., 2014) for cells.

    Inputs: ``x`` (seq_len, batch, inputs) and ``labels`` (seq_len, batch), int32. The loss is the
    mean of the steps' losses.
    """
    x = graphc.input("x", (seq_len, batch, inputs))
    labels = graphc.input("labels", (seq_len, batch), dtype="int32")
    with graphc.scope("embed"):
        bound = Initial("uniform", math.sqrt(6 / inputs))
        embed = graphc.parameter("weight", (hidden, inputs), initial=bound)
    cells, states = [], []
    for layer in range(layers):
        with graphc.scope(f"layer{layer}"):
            cells.append(graphc.gru_parameters(hidden, hidden))
            states.append(graphc.parameter("initial", (batch, hidden), trainable=False))
    with graphc.scope("output"):
        bound = Initial("uniform", hidden**-0.5)
        weight = graphc.parameter("weight", (classes, hidden), initial=bound)
        bias = graphc.parameter("bias", (classes,))
    losses = []
    for step in range(seq_len):
        with graphc.scope(f"step{step}"):
            h = graphc.affine(x[step], embed)
            for layer in range(layers):
                with graphc.scope(f"layer{layer}"):
                    h = states[layer] = graphc.gru_cell(h, states[layer], cells[layer])
            with graphc.scope("output"):
                logits = graphc.affine(h, weight, bias)
                losses.append(graphc.softmax_cross_entropy(logits, labels[step]))
    return functools.reduce(graphc.add, losses) * (1 / seq_len)


def uvit(
    layers: int = 13,
    width: int = 512,
    heads: int = 8,
    patches: int = 256,
    channels: int = 12,
    batch: int = 64,
) -> Value:
    """The transformer with long skips of Bao et al. (2022), by default U-ViT-S/2 on 32 x 32.

    Of 2n + 1 blocks the n last read what the n first made, the latest first, side by side with
    what the block before made, through a linear layer. A token of its own carries the time. Inputs:
    ``x`` (batch, patches, channels), ``time`` (batch, 1, width), embedded, and ``noise`` like x,
    which the network tells; the loss is its mean squared error.
    """
    x = graphc.input("x", (batch, patches, channels))
    time = graphc.input("time", (batch, 1, width))
    noise = graphc.input("noise", x.shape)
    with graphc.scope("embedding"):
        place = graphc.parameter("position", (1 + patches, width), initial=Initial("normal", 0.02))
        h = graphc.add(graphc.concat([time, graphc.linear(x, width)], axis=1), place)
    block = Block(heads, 4 * width)
    skips: list[Value] = []
    for layer in range(layers):
        with graphc.scope(f"layer{layer}"):
            if layer > layers // 2:
                both = graphc.concat([h, skips.pop()], axis=2)
                h = graphc.linear(both, width, name="skip")
            h = block.norm_first(h)
            if layer < layers // 2:
                skips.append(h)
    with graphc.scope("output"):
        told = graphc.linear(graphc.layer_norm(h)[:, 1:], channels)
    return graphc.mse(told, noise)
