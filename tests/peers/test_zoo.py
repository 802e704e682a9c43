"""Every network of the zoo, small, against torch's functions in float64. Run by `make nightly`."""

import numpy as np
import pytest
from peers.comparison import RNG, compare

from graphc.models import MODELS

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional


class Scope:
    """Parameters by name below a scope, and the layers that use them."""

    def __init__(self, parameters, prefix=""):
        self.parameters, self.prefix = parameters, prefix

    def __truediv__(self, name):
        return Scope(self.parameters, f"{self.prefix}{name}/")

    def __getitem__(self, name):
        return self.parameters.get(self.prefix + name)

    def linear(self, x):
        return F.linear(x, self["weight"], self["bias"])

    def conv(self, x, stride=1, padding=0, groups=1):
        return F.conv2d(x, self["weight"], self["bias"], stride, padding, groups=groups)

    def batch_norm(self, x, name="norm", epsilon=1e-5):
        norm = self / name
        return F.batch_norm(x, None, None, norm["scale"], norm["bias"], True, eps=epsilon)

    def layer_norm(self, x, name="norm", epsilon=1e-5):
        norm = self / name
        return F.layer_norm(x, x.shape[-1:], norm["scale"], norm["bias"], epsilon)


def images(sizes):
    return RNG.standard_normal((sizes["batch"], sizes.get("channels", 3), *[sizes["image"]] * 2))


def classes(sizes, *shape):
    return RNG.integers(0, sizes["classes"], shape or (sizes["batch"],)).astype(np.int32)


def image_feeds(sizes):
    return {"x": images(sizes), "labels": classes(sizes)}


def mlp(p, feeds, sizes):
    h = feeds["x"]
    for i in range(sizes["layers"]):
        h = F.relu((p / f"layer{i}").linear(h))
    return (p / "output").linear(h)


def resnet(p, feeds, sizes):
    common = sizes.get("form") == "common"

    def layer(p, x, window, stride=1, act=True):
        h = p.batch_norm(p.conv(x, stride, window // 2))
        return F.relu(h) if act else h

    h = F.max_pool2d(layer(p / "stem", feeds["x"], 7, 2), 3, 2, int(common))
    for stage, count in enumerate(sizes["units"]):
        for unit in range(count):
            q = p / f"stage{stage + 1}" / f"unit{unit}"
            stride = 2 if stage > 0 and unit == 0 else 1
            r = layer(q / "window", layer(q / "reduce", h, 1), 3, stride)
            r = layer(q / "expand", r, 1, act=not common)
            if unit == 0:
                h = layer(q / "shortcut", h, 1, stride, not common)
            h = F.relu(h + r) if common else h + r
    return (p / "output").linear(h.mean((2, 3)))


def preact_resnet(p, feeds, sizes):
    h = (p / "stem").conv(feeds["x"], padding=1)
    for stage in range(3):
        for unit in range((sizes["depth"] - 2) // 9):
            q = p / f"stage{stage + 1}" / f"unit{unit}"
            stride, r = 2 if stage > 0 and unit == 0 else 1, h
            for name, step, padding in (("reduce", 1, 0), ("window", stride, 1), ("expand", 1, 0)):
                part = q / name
                r = part.conv(F.relu(part.batch_norm(r)), step, padding)
            h = (h if h.shape == r.shape else (q / "shortcut").conv(h, stride)) + r
    output = p / "output"
    return output.linear(F.relu(output.batch_norm(h)).mean((2, 3)))


def lstm(p, feeds, sizes):
    cells = [p / f"layer{layer}" for layer in range(sizes["layers"])]
    states = [(cell["initial_h"], cell["initial_c"]) for cell in cells]
    logits = []
    for x in feeds["x"]:
        h = (p / "embed").linear(x)
        for layer, q in enumerate(cells):
            before, c = states[layer]
            i, n, f, o = ((q / "input").linear(h) + (q / "hidden").linear(before)).chunk(4, 1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(n)
            h = torch.sigmoid(o) * torch.tanh(c)
            states[layer] = (h, c)
        logits.append((p / "output").linear(h))
    return torch.stack(logits)


def vgg16(p, feeds, sizes):
    h = feeds["x"]
    for stage, count in enumerate((2, 2, 3, 3, 3)):
        for number in range(count):
            h = F.relu((p / f"stage{stage + 1}" / f"conv{number + 1}").conv(h, padding=1))
        h = F.max_pool2d(h, 2)
    h = h.flatten(1)
    for number in range(2):
        h = F.relu((p / f"linear{number + 1}").linear(h))
    return (p / "output").linear(h)


def densenet121(p, feeds, sizes):
    stem = p / "stem"
    h = F.max_pool2d(F.relu(stem.batch_norm(stem.conv(feeds["x"], 2, 3))), 3, 2, 1)
    for block, layers in enumerate(sizes["blocks"]):
        for layer in range(layers):
            q = p / f"block{block + 1}" / f"layer{layer + 1}"
            squeeze, window = q / "squeeze", q / "window"
            r = squeeze.conv(F.relu(squeeze.batch_norm(h)))
            h = torch.cat([h, window.conv(F.relu(window.batch_norm(r)), padding=1)], 1)
        if block + 1 < len(sizes["blocks"]):
            q = p / f"transition{block + 1}"
            h = F.avg_pool2d(q.conv(F.relu(q.batch_norm(h))), 2)
    output = p / "output"
    return output.linear(F.relu(output.batch_norm(h)).mean((2, 3)))


def inception_v3(p, feeds, sizes):
    def conv(p, x, stride=1, padding=0):
        return F.relu(p.batch_norm(p.conv(x, stride, padding), epsilon=1e-3))

    def chain(p, x, *layers):
        """Convolutions by name, with stride and padding."""
        for name, *given in layers:
            x = conv(p / name, x, *given)
        return x

    def pooled(p, x):
        return conv(p / "pool", F.avg_pool2d(x, 3, 1, 1))

    def bands(name, count, first):
        padding = [(0, 3), (3, 0)] if first else [(3, 0), (0, 3)]
        return [(f"{name}{i + 1}", 1, padding[i % 2]) for i in range(count)]

    def cross(p, x):
        return [conv(p / "row", x, 1, (0, 1)), conv(p / "column", x, 1, (1, 0))]

    h = chain(p / "stem", feeds["x"], ("a", 2), ("b",), ("c", 1, 1))
    h = chain(p / "stem", F.max_pool2d(h, 3, 2), ("d",), ("e",))
    h = F.max_pool2d(h, 3, 2)
    for number in (1, 2, 3):
        q = p / f"block{number}"
        five = chain(q, h, ("five0",), ("five1", 1, 2))
        three = chain(q, h, ("three0",), ("three1", 1, 1), ("three2", 1, 1))
        h = torch.cat([conv(q / "one", h), five, three, pooled(q, h)], 1)
    q = p / "reduction1"
    three = chain(q, h, ("three0",), ("three1", 1, 1), ("three2", 2))
    h = torch.cat([conv(q / "one", h, 2), three, F.max_pool2d(h, 3, 2)], 1)
    for number in (4, 5, 6, 7):
        q = p / f"block{number}"
        once = chain(q, h, ("once0",), *bands("once", 2, True))
        twice = chain(q, h, ("twice0",), *bands("twice", 4, False))
        h = torch.cat([conv(q / "one", h), once, twice, pooled(q, h)], 1)
    q = p / "reduction2"
    three = chain(q, h, ("three0",), ("three1", 2))
    seven = chain(q, h, ("seven0",), *bands("seven", 2, True), ("seven3", 2))
    h = torch.cat([three, seven, F.max_pool2d(h, 3, 2)], 1)
    for number in (8, 9):
        q = p / f"block{number}"
        three = torch.cat(cross(q / "three1", conv(q / "three0", h)), 1)
        twice = chain(q, h, ("twice0",), ("twice1", 1, 1))
        twice = torch.cat(cross(q / "twice2", twice), 1)
        h = torch.cat([conv(q / "one", h), three, twice, pooled(q, h)], 1)
    return (p / "output").linear(h.mean((2, 3)))


def two_tower(p, feeds, sizes):
    towers = []
    for name in ("queries", "items"):
        h = (p / name)["table"][feeds[name].long()].mean(1)
        for layer in range(sizes["layers"]):
            h = (p / name / f"layer{layer}").linear(h)
            h = F.relu(h) if layer < sizes["layers"] - 1 else h
        towers.append(h)
    query, item = towers
    return query @ item.T


def mobilenet_v2(p, feeds, sizes):
    def layer(p, x, padding=0, stride=1, groups=1):
        return p.batch_norm(p.conv(x, stride, padding, groups))

    h = F.relu6(layer(p / "stem", feeds["x"], 1, 2))
    counts, strides = (1, 2, 3, 4, 3, 3, 1), (1, 2, 2, 2, 1, 2, 1)
    for stage, (count, first) in enumerate(zip(counts, strides, strict=True)):
        for unit in range(count):
            q, r = p / f"stage{stage + 1}" / f"unit{unit}", h
            if stage > 0:
                r = F.relu6(layer(q / "expand", r))
            stride = first if unit == 0 else 1
            r = F.relu6(layer(q / "depthwise", r, 1, stride, r.shape[1]))
            r = layer(q / "project", r)
            h = h + r if stride == 1 and h.shape == r.shape else r
    h = F.relu6(layer(p / "head", h)).mean((2, 3))
    return (p / "output").linear(h)


def unet(p, feeds, sizes):
    def twice(p, x):
        for number in (1, 2):
            q = p / f"conv{number}"
            x = F.relu(q.batch_norm(q.conv(x, padding=1)))
        return x

    h, bridges = feeds["x"], []
    for level in range(sizes["depth"]):
        bridges.append(twice(p / f"down{level}", h))
        h = F.max_pool2d(bridges[-1], 2)
    h = twice(p / "bottom", h)
    for level in reversed(range(sizes["depth"])):
        q = p / f"up{level}"
        h = F.conv_transpose2d(h, q["weight"], q["bias"], 2)
        h = twice(q, torch.cat([bridges[level], h], 1))
    return (p / "output").conv(h).permute(0, 2, 3, 1)


def attend(p, x, heads, causal=False):
    """Torch's own attention, not its parts."""
    p = p / "attention"
    q, k, v = (
        part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (p / "qkv").linear(x).chunk(3, 2)
    )
    h = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return (p / "project").linear(h.transpose(1, 2).flatten(2))


def feed_forward(p, x, form="none"):
    p = p / "mlp"
    return (p / "project").linear(F.gelu((p / "widen").linear(x), approximate=form))


def gpt2(p, feeds, sizes):
    e = p / "embedding"
    h = e["token"][feeds["tokens"]] + e["position"][: sizes["seq_len"]]
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = h + attend(q, q.layer_norm(h, "norm1"), sizes["heads"], causal=True)
        h = h + feed_forward(q, q.layer_norm(h, "norm2"), "tanh")
    return F.linear((p / "output").layer_norm(h), e["token"])


def bert(p, feeds, sizes):
    e, tiny = p / "embedding", 1e-12
    h = e["token"][feeds["tokens"]] + e["position"][: sizes["seq_len"]]
    h = e.layer_norm(h + (e / "segment")["weight"][feeds["segments"]], epsilon=tiny)
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = q.layer_norm(h + attend(q, h, sizes["heads"]), "norm1", tiny)
        h = q.layer_norm(h + feed_forward(q, h), "norm2", tiny)
    output = p / "output"
    h = F.gelu((output / "transform").linear(h.flatten(0, 1)[feeds["places"]]))
    return F.linear(output.layer_norm(h, epsilon=tiny), e["token"], output["bias"])


def vit(p, feeds, sizes):
    e, tiny = p / "embedding", 1e-6
    patches = (e / "patch").conv(feeds["x"], sizes["patch"]).flatten(2).transpose(1, 2)
    first = e["class_token"].expand(sizes["batch"], 1, -1)
    h = torch.cat([first, patches], 1) + e["position"]
    for layer in range(sizes["layers"]):
        q = p / f"layer{layer}"
        h = h + attend(q, q.layer_norm(h, "norm1", tiny), sizes["heads"])
        h = h + feed_forward(q, q.layer_norm(h, "norm2", tiny))
    output = p / "output"
    return output.linear(output.layer_norm(h, epsilon=tiny)[:, 0])


def token_feeds(sizes):
    tokens = RNG.integers(0, sizes["vocab"], (2, sizes["batch"], sizes["seq_len"]))
    return dict(zip(("tokens", "labels"), tokens.astype(np.int32), strict=True))


def masked_feeds(sizes):
    places = RNG.integers(0, sizes["batch"] * sizes["seq_len"], (sizes["batch"], sizes["masked"]))
    return {
        "tokens": token_feeds(sizes)["tokens"],
        "segments": RNG.integers(0, 2, (sizes["batch"], sizes["seq_len"])).astype(np.int32),
        "places": places.astype(np.int32),
        "labels": RNG.integers(0, sizes["vocab"], places.shape).astype(np.int32),
    }


def sequence_feeds(sizes):
    shape = (sizes["seq_len"], sizes["batch"])
    return {"x": RNG.standard_normal((*shape, sizes["inputs"])), "labels": classes(sizes, *shape)}


def pixel_feeds(sizes):
    return {"x": images(sizes), "labels": classes(sizes, sizes["batch"], *[sizes["image"]] * 2)}


def vector_feeds(sizes):
    x = RNG.standard_normal((sizes["batch"], sizes["inputs"]))
    return {"x": x, "labels": classes(sizes)}


def word_feeds(sizes):
    shape = (sizes["batch"], sizes["words"])
    return {
        name: RNG.integers(0, sizes["rows"], shape).astype(np.int32)
        for name in ("queries", "items")
    }


IMAGE = {"batch": 3, "image": 32, "classes": 5}
RESIDUAL = {"units": (2, 1, 1, 1), "batch": 2, "image": 40, "classes": 5}
TOKENS = {"layers": 2, "width": 12, "heads": 3, "seq_len": 7, "batch": 2, "vocab": 11}
CASES = {
    # name: torch's network, the feeds, the sizes
    "mlp": (mlp, vector_feeds, {"layers": 3, "hidden": 8, "inputs": 6, "classes": 4, "batch": 5}),
    "resnet": (resnet, image_feeds, RESIDUAL),
    "resnet common": (resnet, image_feeds, {**RESIDUAL, "form": "common"}),
    "preact_resnet": (preact_resnet, image_feeds, {"depth": 11, **IMAGE}),
    "lstm": (
        lstm,
        sequence_feeds,
        {"seq_len": 4, "batch": 3, "layers": 2, "hidden": 6, "inputs": 5, "classes": 7},
    ),
    "lstm by layer": (
        lstm,
        sequence_feeds,
        {
            "seq_len": 4,
            "batch": 3,
            "layers": 2,
            "hidden": 6,
            "inputs": 5,
            "classes": 7,
            "by_layer": True,
        },
    ),
    "vgg16": (vgg16, image_feeds, {"width": 8, "hidden": 16, "drop": 0.0, **IMAGE}),
    "densenet121": (densenet121, image_feeds, {"growth": 4, "blocks": (2, 3, 2), **IMAGE}),
    "mobilenet_v2": (mobilenet_v2, image_feeds, {"width": 0.25, "drop": 0.0, **IMAGE}),
    "inception_v3": (
        inception_v3,
        image_feeds,
        {"width": 2, "drop": 0.0, **IMAGE, "image": 75},
    ),
    "two_tower": (
        two_tower,
        word_feeds,
        {"batch": 5, "layers": 3, "width": 6, "rows": 9, "words": 3},
    ),
    "unet": (unet, pixel_feeds, {"width": 4, "depth": 2, "channels": 2, **IMAGE}),
    "gpt2": (gpt2, token_feeds, {**TOKENS, "positions": 9, "drop": 0.0}),
    "gpt2 composed": (
        gpt2,
        token_feeds,
        {**TOKENS, "positions": 9, "drop": 0.0, "attention": "composed"},
    ),
    "bert": (bert, masked_feeds, {**TOKENS, "positions": 9, "masked": 3, "drop": 0.0}),
    "vit": (
        vit,
        image_feeds,
        {"layers": 2, "width": 12, "heads": 3, "patch": 8, **IMAGE},
    ),
}


def test_every_network_is_compared():
    assert {name.split()[0] for name in CASES} == set(MODELS)


@pytest.mark.parametrize("name", CASES)
def test_gradients(name):
    network, draw, sizes = CASES[name]
    feeds = draw(sizes)
    tensors = {key: torch.tensor(array) for key, array in feeds.items()}

    def peer(parameters):
        logits = network(Scope(parameters), tensors, sizes)
        # Towers find the item of each query, which is that of the same number.
        labels = tensors.get("labels", torch.arange(sizes["batch"])).long().flatten()
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels)

    compare(MODELS[name.split()[0]](**sizes, dtype="float64"), peer, feeds)
