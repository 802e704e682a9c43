"""Networks of today, written in the DSL: trained like torch's to 1e-9, planned, written as ONNX."""

import numpy as np
import pytest
from peers.training import trains_alike

import graphc as g

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional
RNG = np.random.default_rng(2)


def tokens(shape, vocab):
    return RNG.integers(0, vocab, shape).astype(np.int32)


def long(array):
    return torch.tensor(array).long()


def heads_of(x, heads):
    """(batch, positions, width) to (batch, heads, positions, width of a head)."""
    batch, positions, width = x.shape
    parts = g.reshape(x, (batch, positions, heads, width // heads))
    return g.transpose(parts, (0, 2, 1, 3))


def peer_heads(x, heads):
    return x.unflatten(2, (heads, -1)).transpose(1, 2)


def test_llama_block(tmp_path):
    """Rotary positions (Su et al., 2021), RMS norms, keys that heads share, gated layers."""
    batch, positions, vocab, width, heads, shared = 2, 6, 11, 16, 4, 2
    half = width // heads // 2
    angles = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(half) / half)
    cosine, sine = np.cos(angles), np.sin(angles)

    def rotated(x):
        a, b = g.split(x, 2, axis=3)
        cos, sin = g.constant(cosine), g.constant(sine)
        return g.concat([a * cos - b * sin, b * cos + a * sin], axis=3)

    def linear(x, outputs, name):
        return g.linear(x, outputs, bias=False, name=name)

    ids, labels = (g.input(name, (batch, positions), "int32") for name in ("ids", "labels"))
    h = g.embedding(ids, vocab, width, "float64", name="table")
    x = g.rms_norm(h, name="norm1")
    q = rotated(heads_of(linear(x, width, "q"), heads))
    k = rotated(heads_of(linear(x, width // shared, "k"), heads // shared))
    v = heads_of(linear(x, width // shared, "v"), heads // shared)
    mixed = g.transpose(g.attention(q, k, v, causal=True), (0, 2, 1, 3))
    h = h + linear(g.reshape(mixed, (batch, positions, width)), width, "o")
    x = g.rms_norm(h, name="norm2")
    h = h + linear(g.silu(linear(x, 24, "gate")) * linear(x, 24, "up"), width, "down")
    logits = linear(g.rms_norm(h, name="norm3"), vocab, "output")
    loss = g.softmax_cross_entropy(logits, labels)
    feeds = {name: tokens((batch, positions), vocab) for name in ("ids", "labels")}

    def peer(p, feeds, outputs):
        def turned(x):
            a, b = x.chunk(2, 3)
            cos, sin = torch.tensor(cosine), torch.tensor(sine)
            return torch.cat([a * cos - b * sin, b * cos + a * sin], 3)

        def norm(x, name):
            return F.rms_norm(x, (width,), p[f"{name}/scale"], 1e-6)

        def linear(x, name):
            return F.linear(x, p[f"{name}/weight"])

        h = F.embedding(long(feeds["ids"]), p["table/weight"])
        x = norm(h, "norm1")
        q = turned(peer_heads(linear(x, "q"), heads))
        k, v = (peer_heads(linear(x, name), heads // shared) for name in "kv")
        k, v = (each.repeat_interleave(shared, 1) for each in (turned(k), v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = h + linear(mixed.transpose(1, 2).flatten(2), "o")
        x = norm(h, "norm2")
        h = h + linear(F.silu(linear(x, "gate")) * linear(x, "up"), "down")
        logits = linear(norm(h, "norm3"), "output")
        return F.cross_entropy(logits.flatten(0, 1), long(feeds["labels"]).flatten())

    trains_alike(loss, peer, feeds, tmp_path / "llama.onnx")


def test_mixture_of_experts(tmp_path):
    """Each row goes to the two experts of four that a gate ranks first (Shazeer et al., 2017)."""
    rows, width, experts, chosen = 9, 6, 4, 2
    x = g.input("x", (rows, width), "float64")
    target = g.input("target", (rows, width), "float64")
    best, places = g.top_k(g.linear(x, experts, name="gate"), chosen)
    share = g.reshape(g.softmax(best), (rows, chosen, 1))
    shares = g.sum(g.one_hot(places, experts, "float64") * share, 1)
    y = g.full((rows, width), 0.0, "float64")
    for i in range(experts):
        with g.scope(f"expert{i}"):
            hidden = g.gelu(g.linear(x, 10, name="widen"))
            y = y + shares[:, i : i + 1] * g.linear(hidden, width, name="narrow")
    loss = g.mse(y, target)
    feeds = {name: RNG.standard_normal((rows, width)) for name in ("x", "target")}

    def peer(p, feeds, outputs):
        def linear(x, name):
            return F.linear(x, p[f"{name}/weight"], p[f"{name}/bias"])

        x = torch.tensor(feeds["x"])
        best, places = linear(x, "gate").topk(chosen)
        share = best.softmax(1)
        results = []
        for row in range(rows):  # only the experts that are chosen compute
            parts = [
                share[row, k]
                * linear(F.gelu(linear(x[row], f"expert{i}/widen")), f"expert{i}/narrow")
                for k, i in enumerate(places[row].tolist())
            ]
            results.append(sum(parts))
        return F.mse_loss(torch.stack(results), torch.tensor(feeds["target"]))

    trains_alike(loss, peer, feeds, tmp_path / "experts.onnx")


def test_diffusion_unet(tmp_path):
    """Residual blocks that a time shifts, attention at the bottom, skips (Ho et al., 2020)."""
    batch, channels, extent, base = 2, 3, 8, 8
    frequencies = np.exp(-np.log(1e4) * np.arange(4) / 4)

    x = g.input("x", (batch, channels, extent, extent), "float64")
    noise = g.input("noise", x.shape, "float64")
    time = g.input("time", (batch,), "float64")

    def block(x, embedded, filters, name):
        with g.scope(name):
            h = g.conv2d(g.silu(g.group_norm(x, 2, name="norm1")), filters, 3, padding=1, name="a")
            shift = g.linear(g.silu(embedded), filters, name="time")
            h = h + g.reshape(shift, (batch, filters, 1, 1))
            h = g.conv2d(g.silu(g.group_norm(h, 4, name="norm2")), filters, 3, padding=1, name="b")
            return h + g.conv2d(x, filters, 1, name="skip")

    def attend(x, name):
        with g.scope(name):
            n, c, height, width = x.shape
            flat = g.reshape(g.group_norm(x, 4), (n, c, height * width))
            qkv = g.linear(g.transpose(flat, (0, 2, 1)), 3 * c, name="qkv")
            mixed = g.linear(g.multi_head_attention(qkv, 2), c, name="project")
            return x + g.reshape(g.transpose(mixed, (0, 2, 1)), x.shape)

    angles = g.reshape(time, (batch, 1)) * g.constant(frequencies)
    embedded = g.linear(g.concat([g.sin(angles), g.cos(angles)], axis=1), 12, name="embedding")
    first = g.conv2d(x, base, 3, padding=1, name="first")
    left = block(first, embedded, base, "down")
    low = g.conv2d(left, 2 * base, 3, stride=2, padding=1, name="shrink")
    low = attend(block(low, embedded, 2 * base, "middle"), "attention")
    high = g.conv2d(g.upsample2d(low, 2), base, 3, padding=1, name="grow")
    h = block(g.concat([high, left], axis=1), embedded, base, "up")
    found = g.conv2d(g.silu(g.group_norm(h, 2, name="last")), channels, 3, padding=1, name="out")
    loss = g.mse(found, noise)
    feeds = {name: RNG.standard_normal(x.shape) for name in ("x", "noise")}
    feeds["time"] = np.array([3.0, 250.0])

    def peer(p, feeds, outputs):
        def conv(x, name, **how):
            return F.conv2d(x, p[f"{name}/weight"], p[f"{name}/bias"], **how)

        def linear(x, name):
            return F.linear(x, p[f"{name}/weight"], p[f"{name}/bias"])

        def norm(x, groups, name):
            return F.group_norm(x, groups, p[f"{name}/scale"], p[f"{name}/bias"])

        def block(x, embedded, name):
            h = conv(F.silu(norm(x, 2, f"{name}/norm1")), f"{name}/a", padding=1)
            h = h + linear(F.silu(embedded), f"{name}/time")[:, :, None, None]
            h = conv(F.silu(norm(h, 4, f"{name}/norm2")), f"{name}/b", padding=1)
            return h + conv(x, f"{name}/skip")

        def attend(x, name):
            flat = norm(x, 4, f"{name}/norm").flatten(2).transpose(1, 2)
            q, k, v = (peer_heads(e, 2) for e in linear(flat, f"{name}/qkv").chunk(3, 2))
            mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
            return x + linear(mixed, f"{name}/project").transpose(1, 2).reshape(x.shape)

        x = torch.tensor(feeds["x"])
        angles = torch.tensor(feeds["time"])[:, None] * torch.tensor(frequencies)
        embedded = linear(torch.cat([angles.sin(), angles.cos()], 1), "embedding")
        left = block(conv(x, "first", padding=1), embedded, "down")
        low = conv(left, "shrink", stride=2, padding=1)
        low = attend(block(low, embedded, "middle"), "attention")
        high = conv(F.interpolate(low, scale_factor=2), "grow", padding=1)
        h = block(torch.cat([high, left], 1), embedded, "up")
        found = conv(F.silu(norm(h, 2, "last")), "out", padding=1)
        return F.mse_loss(found, torch.tensor(feeds["noise"]))

    trains_alike(loss, peer, feeds, tmp_path / "diffusion.onnx")


def test_variational_autoencoder(tmp_path):
    """Its noise is drawn by graphc, other numbers at each step (Kingma and Welling, 2013)."""
    batch, width, latent = 5, 12, 3
    x = g.input("x", (batch, width), "float64")
    h = g.tanh(g.linear(x, 8, name="encode"))
    mean, log_variance = (g.linear(h, latent, name=name) for name in ("mean", "log_variance"))
    noise = g.normal((batch, latent), dtype="float64")
    z = mean + g.exp(log_variance * 0.5) * noise
    logits = g.linear(g.tanh(g.linear(z, 8, name="decode")), width, name="output")
    divergence = g.mean(g.sum(g.exp(log_variance) + mean * mean - 1.0 - log_variance, 1)) * 0.5
    loss = g.binary_cross_entropy_with_logits(logits, x) + divergence
    feeds = {"x": RNG.random((batch, width))}
    drawn = []

    def peer(p, feeds, outputs):
        def linear(x, name):
            return F.linear(x, p[f"{name}/weight"], p[f"{name}/bias"])

        x, noise = torch.tensor(feeds["x"]), torch.tensor(outputs["noise"])
        drawn.append(outputs["noise"])
        h = linear(x, "encode").tanh()
        mean, log_variance = linear(h, "mean"), linear(h, "log_variance")
        z = mean + (0.5 * log_variance).exp() * noise
        logits = linear(linear(z, "decode").tanh(), "output")
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return F.binary_cross_entropy_with_logits(logits, x) + divergence

    trains_alike(loss, peer, feeds, tmp_path / "vae.onnx", {"noise": noise})
    assert not np.array_equal(drawn[0], drawn[1])


def test_masked_bert_on_padded_text(tmp_path):
    """Words of different lengths, of which one has none; labels where a word is to be restored."""
    batch, positions, vocab, width, heads, padding = 3, 6, 13, 8, 2, 0
    ids, labels = (g.input(name, (batch, positions), "int32") for name in ("ids", "labels"))
    seen = g.reshape(g.greater(ids, padding), (batch, 1, 1, positions))
    places = g.parameter("places", (positions, width), "float64")
    h = g.layer_norm(g.embedding(ids, vocab, width, "float64", name="table") + places)
    for i in range(2):
        with g.scope(f"layer{i}"):
            q, k, v = (heads_of(g.linear(h, width, name=name), heads) for name in "qkv")
            mixed = g.transpose(g.attention(q, k, v, mask=seen), (0, 2, 1, 3))
            mixed = g.linear(g.reshape(mixed, h.shape), width, name="o")
            h = g.layer_norm(h + mixed, name="norm1")
            wide = g.gelu(g.linear(h, 16, name="widen"))
            h = g.layer_norm(h + g.linear(wide, width, name="narrow"), name="norm2")
    logits = g.linear(h, vocab, name="output")
    loss = g.softmax_cross_entropy(logits, labels, ignore_index=-100)
    words = tokens((batch, positions), vocab - 1) + 1
    for row, length in enumerate((positions, 4, 0)):
        words[row, length:] = padding
    answers = np.where(RNG.random(words.shape) < 0.5, words, -100).astype(np.int32)
    feeds = {"ids": words, "labels": np.where(words == padding, -100, answers).astype(np.int32)}

    def peer(p, feeds, outputs):
        def linear(x, name):
            return F.linear(x, p[f"{name}/weight"], p[f"{name}/bias"])

        def norm(x, name):
            return F.layer_norm(x, (width,), p[f"{name}/scale"], p[f"{name}/bias"])

        ids = long(feeds["ids"])
        seen = (ids > padding)[:, None, None, :]
        h = norm(F.embedding(ids, p["table/weight"]) + p["places"], "norm")
        for i in range(2):
            q, k, v = (peer_heads(linear(h, f"layer{i}/{name}"), heads) for name in "qkv")
            scores = (q @ k.transpose(2, 3) / (width // heads) ** 0.5).masked_fill(~seen, -1e300)
            mixed = (scores.softmax(3) * seen) @ v
            mixed = linear(mixed.transpose(1, 2).flatten(2), f"layer{i}/o")
            h = norm(h + mixed, f"layer{i}/norm1")
            wide = F.gelu(linear(h, f"layer{i}/widen"))
            h = norm(h + linear(wide, f"layer{i}/narrow"), f"layer{i}/norm2")
        logits = linear(h, "output")
        return F.cross_entropy(logits.flatten(0, 1), long(feeds["labels"]).flatten())

    trains_alike(loss, peer, feeds, tmp_path / "bert.onnx")
