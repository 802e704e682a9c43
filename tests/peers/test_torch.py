"""Losses and gradients against torch in float64, to 1e-8 relative. Run by `make nightly`."""

import numpy as np
import pytest
from peers.comparison import RNG, compare

import graphc as g
from graphc.models import mlp

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional


def test_multilayer_perceptron():
    layers, batch = 4, 8
    x = g.input("x", (batch, 12), "float64")
    labels = g.input("labels", (batch,), "int32")
    h = x
    for i in range(layers):
        h = g.relu(g.linear(h, 16, name=f"layer{i}"))
    loss = g.softmax_cross_entropy(g.linear(h, 5, name="output"), labels)
    assert [n.op.name for n in g.plan(mlp()).graph.nodes][:2] == ["linear", "relu"]
    feeds = {"x": RNG.standard_normal((batch, 12)), "labels": np.arange(batch, dtype=np.int32) % 5}

    def peer(p):
        h = torch.tensor(feeds["x"])
        for i in range(layers):
            h = F.relu(F.linear(h, p[f"layer{i}/weight"], p[f"layer{i}/bias"]))
        logits = F.linear(h, p["output/weight"], p["output/bias"])
        return F.cross_entropy(logits, torch.tensor(feeds["labels"]).long())

    compare(loss, peer, feeds)


def test_convolutional_network():
    x = g.input("x", (3, 2, 11, 9), "float64")
    h = g.conv2d(x, 4, 3, stride=2, padding=1, name="a")
    h = g.relu(g.batch_norm(h, name="na"))
    h = g.max_pool2d(h, 3, 2, 1)
    h = g.conv2d(h, 6, (3, 2), padding=1, dilation=(1, 2), groups=2, bias=False, name="b")
    h = g.gelu(g.group_norm(h, 3, name="nb"))
    h = g.upsample2d(g.upsample2d(h, 2, "bilinear"), 2)
    h = g.conv_transpose2d(h, 4, 3, stride=2, padding=1, output_padding=1, name="c")
    h = g.average_pool2d(g.silu(h), 2, padding=1)
    h = g.adaptive_average_pool2d(h, (3, 2))
    loss = g.mean(h * h)
    feeds = {"x": RNG.standard_normal((3, 2, 11, 9))}

    def peer(p):
        h = F.conv2d(torch.tensor(feeds["x"]), p["a/weight"], p["a/bias"], 2, 1)
        h = F.batch_norm(h, None, None, p["na/scale"], p["na/bias"], training=True)
        h = F.max_pool2d(F.relu(h), 3, 2, 1)
        h = F.conv2d(h, p["b/weight"], None, 1, 1, (1, 2), 2)
        h = F.gelu(F.group_norm(h, 3, p["nb/scale"], p["nb/bias"]))
        h = F.interpolate(h, scale_factor=2, mode="bilinear")
        h = F.interpolate(h, scale_factor=2)
        h = F.conv_transpose2d(h, p["c/weight"], p["c/bias"], 2, 1, 1)
        h = F.avg_pool2d(F.silu(h), 2, padding=1)
        h = F.adaptive_avg_pool2d(h, (3, 2))
        return (h * h).mean()

    compare(loss, peer, feeds)


def test_recurrent_cells():
    x, h, c = (g.input(n, (3, 4), "float64") for n in "xhc")
    with g.scope("l"):
        long, cell = g.lstm_cell(x, h, c, g.lstm_parameters(4, 4, "float64"))
    with g.scope("r"):
        short = g.gru_cell(x, h, g.gru_parameters(4, 4, "float64"))
    loss = g.mean(long * cell * short)
    feeds = {n: RNG.standard_normal((3, 4)) for n in "xhc"}

    def peer(p):
        x, h, c = (torch.tensor(feeds[n]) for n in "xhc")

        def weights(kind, order):
            """torch lists the gates in another order."""
            for part in ("input", "hidden"):
                for name in ("weight", "bias"):
                    pieces = p[f"{kind}/{part}/{name}"].chunk(len(order), 0)
                    yield torch.cat([pieces[i] for i in order])

        wi, bi, wh, bh = weights("l", (0, 2, 1, 3))
        long, cell = torch.lstm_cell(x, (h, c), wi, wh, bi, bh)
        wi, bi, wh, bh = weights("r", (0, 1, 2))
        return (long * cell * torch.gru_cell(x, h, wi, wh, bi, bh)).mean()

    compare(loss, peer, feeds)


@pytest.mark.parametrize("steps", [1, 4])
def test_recurrent_layers(steps):
    x = g.input("x", (steps, 3, 5), "float64")
    h, c = (g.input(n, (3, 4), "float64") for n in "hc")
    with g.scope("l"):
        long, *last = g.lstm_layer(x, h, c, g.lstm_parameters(5, 4, "float64"))
    with g.scope("r"):
        short, end = g.gru_layer(long, h, g.gru_parameters(4, 4, "float64"))
    loss = g.mean(short * short) + g.mean(last[0] * last[1] * end)
    feeds = {v.name: RNG.standard_normal(v.shape) for v in (x, h, c)}

    def peer(p):
        x, h, c = (torch.tensor(feeds[n]) for n in "xhc")

        def weights(kind, order):
            """torch lists the gates in another order."""
            for part, short in (("input", "ih"), ("hidden", "hh")):
                for name in ("weight", "bias"):
                    pieces = p[f"{kind}/{part}/{name}"].chunk(len(order), 0)
                    yield f"{name}_{short}_l0", torch.cat([pieces[i] for i in order])

        lstm, gru = torch.nn.LSTM(5, 4).double(), torch.nn.GRU(4, 4).double()
        call = torch.func.functional_call
        long, last = call(lstm, dict(weights("l", (0, 2, 1, 3))), (x, (h[None], c[None])))
        short, end = call(gru, dict(weights("r", (0, 1, 2))), (long, h[None]))
        return (short * short).mean() + (last[0] * last[1] * end).mean()

    compare(loss, peer, feeds)


def test_transformer_parts():
    x = g.input("x", (2, 5, 8), "float64")
    h = g.layer_norm(x, name="n")
    parts = g.split(g.linear(h, 24, name="qkv"), 3, -1)
    q, k, v = (g.transpose(g.reshape(t, (2, 5, 2, 4)), (0, 2, 1, 3)) for t in parts)
    weights = g.softmax(g.matmul(q, k, transpose_b=True) * 0.5)
    h = g.reshape(g.transpose(g.matmul(weights, v), (0, 2, 1, 3)), (2, 5, 8))
    h = g.rms_norm(x + g.linear(h, 8, name="out"), name="r")
    loss = g.mean(g.gelu(h, "tanh") ** 2)
    feeds = {"x": RNG.standard_normal((2, 5, 8))}

    def peer(p):
        x = torch.tensor(feeds["x"])
        h = F.layer_norm(x, (8,), p["n/scale"], p["n/bias"])
        qkv = F.linear(h, p["qkv/weight"], p["qkv/bias"]).reshape(2, 5, 3, 2, 4)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        h = torch.softmax(q @ k.transpose(-1, -2) * 0.5, -1) @ v
        h = h.transpose(1, 2).reshape(2, 5, 8)
        h = x + F.linear(h, p["out/weight"], p["out/bias"])
        h = F.rms_norm(h, (8,), p["r/scale"], 1e-6)
        return (F.gelu(h, approximate="tanh") ** 2).mean()

    compare(loss, peer, feeds)
