"""Recurrent layers and long skips, beside those of the zoo: networks for budgets.py --wide.

Recurrent layers unrolled over time, whose weights' gradients add up from step to step, and
attention with skips from the first blocks to the last.
"""

from __future__ import annotations

import functools
import math

import graphc
from graphc.models.transformer import DEVIATION, Block


def gru(
    seq_len: int = 64,
    batch: int = 64,
    layers: int = 4,
    hidden: int = 1024,
    inputs: int = 50,
    classes: int = 5000,
) -> graphc.Value:
    """Gated recurrent units in the place of the cells of the zoo's `lstm`, as `gru_cell` has them.

    Inputs: ``x`` (seq_len, batch, inputs) and ``labels`` (seq_len, batch), int32. The loss is the
    mean of the steps' losses.
    """
    x = graphc.input("x", (seq_len, batch, inputs))
    labels = graphc.input("labels", (seq_len, batch), dtype="int32")
    with graphc.scope("embed"):
        bound = graphc.Initial("uniform", math.sqrt(6 / inputs))
        embed = graphc.parameter("weight", (hidden, inputs), initial=bound)
    cells, states = [], []
    for layer in range(layers):
        with graphc.scope(f"layer{layer}"):
            cells.append(graphc.gru_parameters(hidden, hidden))
            states.append(graphc.parameter("initial", (batch, hidden), trainable=False))
    with graphc.scope("output"):
        bound = graphc.Initial("uniform", hidden**-0.5)
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
    pairs: int = 6,
    width: int = 512,
    heads: int = 8,
    patches: int = 256,
    channels: int = 12,
    batch: int = 64,
    attention: str = "composed",
) -> graphc.Value:
    """A transformer with long skips, in the form of U-ViT (Bao et al., 2022).

    By default as large as U-ViT-S/2 on images of 32 x 32. Of 2 · pairs + 1 blocks the last read
    what the first made, the latest first, side by side with what the block before made, through a
    linear layer. A token of its own carries the time. Other than there, the products for queries,
    keys and values have biases, and no convolution smooths the patches at the end. Attention is
    composed as in earlier tables: its maps are (rows x columns).

    Inputs: ``x`` (batch, patches, channels), ``time`` (batch, 1, width), embedded, and ``noise``,
    like x. The loss is the mean squared error of the noise that is predicted.
    """
    x = graphc.input("x", (batch, patches, channels))
    time = graphc.input("time", (batch, 1, width))
    noise = graphc.input("noise", x.shape)
    with graphc.scope("embedding"):
        drawn = graphc.Initial("normal", DEVIATION)
        place = graphc.parameter("position", (1 + patches, width), initial=drawn)
        h = graphc.concat([time, graphc.linear(x, width)], axis=1) + place
    block = Block(heads, 4 * width, attention=attention)
    skips: list[graphc.Value] = []
    for number in range(2 * pairs + 1):
        with graphc.scope(f"layer{number}"):
            if number > pairs:
                h = graphc.linear(graphc.concat([h, skips.pop()], axis=2), width, name="skip")
            h = block.norm_first(h)
            if number < pairs:
                skips.append(h)
    with graphc.scope("output"):
        predicted = graphc.linear(graphc.layer_norm(h)[:, 1:], channels)
    return graphc.mse(predicted, noise)
