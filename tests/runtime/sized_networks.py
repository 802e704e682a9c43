"""Networks in float64 for several sizes, whose padded elements change no loss and no gradient."""

import numpy as np

import graphc as g
from graphc.models.gpt2 import gpt2_features, output_layer
from graphc.models.transformer import Block

CLASSES, BATCH, IGNORED = 11, 2, -100


def counted_loss(logits, labels_shape):
    """The mean over labels that are not ignored."""
    labels = g.input("labels", labels_shape, "int32")
    rows = g.reshape(logits, (-1, logits.shape[-1]))
    return g.softmax_cross_entropy(rows, g.reshape(labels, (-1,)), ignore_index=IGNORED)


def gpt2(seq_len):
    """Causal attention ignores later positions, so only the labels need padding."""
    features, table = gpt2_features("small", 2, 16, 2, seq_len, BATCH, CLASSES, 32, 0.0, "float64")
    return counted_loss(output_layer(features, table), (BATCH, seq_len))


def bert(seq_len):
    """Attention reads a mask of the tokens that exist."""
    width, heads = 16, 2
    tokens = g.input("tokens", (BATCH, seq_len), "int32")
    mask = g.reshape(g.input("mask", (BATCH, seq_len), "bool"), (BATCH, 1, 1, seq_len))
    table = g.parameter("token", (CLASSES, width), "float64", g.Initial("normal", 0.5))
    position = g.parameter("position", (32, width), "float64", g.Initial("normal", 0.5))
    h = g.layer_norm(g.gather(table, tokens) + position[:seq_len], name="embedding")
    for layer in range(2):
        with g.scope(f"layer{layer}"):
            parts = g.split(g.linear(h, 3 * width, name="qkv"), 3, -1)
            q, k, v = (
                g.transpose(g.reshape(p, (BATCH, seq_len, heads, -1)), (0, 2, 1, 3)) for p in parts
            )
            mixed = g.transpose(g.attention(q, k, v, mask=mask), (0, 2, 1, 3))
            mixed = g.linear(g.reshape(mixed, (BATCH, seq_len, width)), width, name="project")
            h = g.layer_norm(h + mixed, name="norm1")
            h = g.layer_norm(h + Block(heads, 32).feed_forward(h), name="norm2")
    return counted_loss(g.affine(h, table), (BATCH, seq_len))


def lstm(seq_len):
    """Padded steps follow the others, so they change no earlier state."""
    inputs, hidden = 5, 8
    x = g.input("x", (seq_len, BATCH, inputs), "float64")
    cells = []
    for layer in range(2):
        with g.scope(f"layer{layer}"):
            cells.append(g.lstm_parameters(hidden if layer else inputs, hidden, "float64"))
    zero = g.full((BATCH, hidden), 0.0, "float64")
    states, steps = [(zero, zero)] * 2, []
    for step in range(seq_len):
        h = x[step]
        for layer, cell in enumerate(cells):
            states[layer] = g.lstm_cell(h, *states[layer], cell)
            h = states[layer][0]
        steps.append(h)
    with g.scope("output"):
        logits = g.linear(g.concat(steps, 0), CLASSES)
    return counted_loss(logits, (seq_len, BATCH))


def unet(image):
    """A mask sets padded pixels to 0 after each layer, as at the border of a smaller image."""
    width = 4
    x = g.input("x", (BATCH, 2, image, image), "float64")
    masks = [g.input("mask", (BATCH, 1, image, image), "float64")]
    for _ in range(2):
        masks.append(g.max_pool2d(masks[-1], 2, 2))

    def twice(h, filters, mask):
        for number in range(2):
            h = g.relu(g.conv2d(h, filters, 3, padding=1, name=f"conv{number}")) * mask
        return h

    h, bridges = x, []
    for level in range(2):
        with g.scope(f"down{level}"):
            h = twice(h, width * 2**level, masks[level])
        bridges.append(h)
        h = g.max_pool2d(h, 2, 2)
    with g.scope("bottom"):
        h = twice(h, 4 * width, masks[2])
    for level in (1, 0):
        with g.scope(f"up{level}"):
            wide = width * 2**level
            h = g.conv_transpose2d(h, wide, 2, stride=2, name="wider") * masks[level]
            h = twice(g.concat([bridges[level], h], axis=1), wide, masks[level])
    with g.scope("output"):
        h = g.conv2d(h, CLASSES, 1)
    return counted_loss(g.transpose(h, (0, 2, 3, 1)), (BATCH, image, image))


BUILDS = {"gpt2": gpt2, "bert": bert, "lstm": lstm, "unet": unet}

SIZES = {
    "gpt2": {"seq_len": (8, 16, 24)},
    "bert": {"seq_len": (8, 16, 24)},
    "lstm": {"seq_len": (2, 4, 6)},
    "unet": {"image": (8, 16, 24)},
}

BETWEEN = {"gpt2": (5, 23), "bert": (5, 23), "lstm": (1, 5), "unet": (4, 20)}
"""Sizes of feeds that are smaller than the family's."""

PAD = {
    "gpt2": {"tokens": 0, "labels": IGNORED},
    "bert": {"tokens": 0, "mask": False, "labels": IGNORED},
    "lstm": {"x": 0.0, "labels": IGNORED},
    "unet": {"x": 0.0, "mask": 0.0, "labels": IGNORED},
}


def feeds(name, size, seed):
    """Random feeds of a network for a size; some labels are ignored."""
    random = np.random.default_rng((seed, size))

    def labels(shape):
        found = random.integers(0, CLASSES, shape).astype(np.int32)
        found[random.random(shape) < 0.2] = IGNORED
        return found

    if name == "lstm":
        return {"x": random.standard_normal((size, BATCH, 5)), "labels": labels((size, BATCH))}
    if name == "unet":
        x = random.standard_normal((BATCH, 2, size, size))
        mask = np.ones((BATCH, 1, size, size))
        return {"x": x, "mask": mask, "labels": labels((BATCH, size, size))}
    tokens = random.integers(0, CLASSES, (BATCH, size)).astype(np.int32)
    given = {"tokens": tokens, "labels": labels((BATCH, size))}
    if name == "bert":
        given["mask"] = random.random((BATCH, size)) < 0.9
    return given
