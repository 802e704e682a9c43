"""Published parameter counts, MXNet's feature maps as an upper bound, and training that agrees."""

from dataclasses import replace

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ir import builder
from graphc.ir.rewrite import rewrite
from graphc.models import (
    MODELS,
    bert,
    densenet121,
    gpt2,
    inception_v3,
    lstm,
    mlp,
    mobilenet_v2,
    preact_resnet,
    resnet,
    two_tower,
    unet,
    vgg16,
    vit,
)  # fmt: skip

MIB = 2**20


def parameters(loss):
    states = builder.trace({"loss": loss}).states
    return sum(s.type.elements for s in states if s.role == "parameter" and s.trainable)


def preactivation_parameters(units):
    """Norms, three convolutions and a projection a unit, counted layer by layer."""
    total, width = 3 * 16 * 9, 16
    for out in (64, 128, 256):
        for unit in range(units):
            inner = out // 4
            total += 2 * width + width * inner + 2 * inner + 9 * inner**2 + 2 * inner + inner * out
            total += width * out if unit == 0 else 0
            width = out
    return total + 2 * width + width * 10 + 10


PUBLISHED = [
    (resnet, {"depth": 50, "form": "common"}, 25_557_032),
    (vgg16, {}, 138_357_544),
    (densenet121, {}, 7_978_856),
    (mobilenet_v2, {}, 3_504_872),
    (inception_v3, {}, 23_834_568),  # torchvision's without the auxiliary classifier
    (gpt2, {}, 124_439_808),
    (gpt2, {"size": "medium"}, 354_823_168),
    (bert, {}, 109_514_298),  # with the layers that restore masked tokens
    (vit, {}, 86_567_656),
]


@pytest.mark.parametrize(("model", "sizes", "count"), PUBLISHED)
def test_published_parameter_counts(model, sizes, count):
    assert parameters(model(**sizes, batch=1)) == count


def test_unet_parameters():
    """Two convolutions with norms at nine places, four transposed ones, one that classifies."""
    widths = [(3, 64), (64, 128), (128, 256), (256, 512), (512, 1024)]
    pairs = widths + [(2 * w, w) for w in (64, 128, 256, 512)]
    total = sum(9 * (a * b + b * b) + 4 * b for a, b in pairs)
    total += sum(4 * 2 * w * w + w for w in (64, 128, 256, 512)) + 64 * 2 + 2
    assert parameters(unet(batch=1)) == total


def test_parameter_counts_of_the_baselines():
    assert parameters(resnet(50, batch=1)) == 25_583_592
    assert parameters(preact_resnet(29, batch=1)) == preactivation_parameters(3)
    cells = 4 * (2 * 4096 * 1024 + 2 * 4096)
    assert parameters(lstm(2)) == cells + 50 * 1024 + 5000 * 1024 + 5000


MXNET = [
    # MXNet 1.9.1's planner, MiB of feature maps under none, inplace and sharing; batch 32 and 64
    pytest.param(lambda: resnet(50), (9460, 6777, 3563), marks=pytest.mark.slow),
    pytest.param(lambda: resnet(101), (14042, 10109, 5229), marks=pytest.mark.slow),
    (lambda: lstm(16), (5333, 2872, 573)),
    pytest.param(lambda: lstm(32), (10815, 5745, 868), marks=pytest.mark.slow),
    pytest.param(lambda: lstm(64), (21781, 11491, 1460), marks=pytest.mark.slow),
    pytest.param(lambda: lstm(128), (43713, 22983, 2642), marks=pytest.mark.slow),
]


@pytest.mark.parametrize(
    ("build", "limits"),
    MXNET,
    ids=["resnet50", "resnet101", "lstm16", "lstm32", "lstm64", "lstm128"],
)
def test_feature_maps_stay_at_or_below_mxnet(build, limits):
    for strategy, limit in zip(("none", "inplace", "sharing"), limits, strict=True):
        plan = g.plan(build(), optimizer=g.optim.SGD(), allocate=strategy)
        assert plan.feature_map_bytes <= limit * MIB


@pytest.mark.slow
@pytest.mark.parametrize(
    ("depth", "units", "limits"),
    [
        (200, (3, 24, 36, 3), (28326, 20497, 10424)),
        (500, (8, 60, 90, 8), (68157, 49465, 24908)),
        (1001, (15, 121, 182, 15), (134053, 97391, 48872)),
    ],
)
def test_deep_residual_networks(depth, units, limits):
    for strategy, limit in zip(("none", "inplace", "sharing"), limits, strict=True):
        plan = g.plan(resnet(depth), optimizer=g.optim.SGD(), allocate=strategy)
        assert plan.feature_map_bytes <= limit * MIB
    by_units = g.plan(resnet(units=units), optimizer=g.optim.SGD())
    assert len(by_units.graph.nodes) == len(plan.graph.nodes)


@pytest.mark.slow
def test_units_of_the_baseline_depths():
    units = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 200: (3, 24, 36, 3)}
    units |= {500: (8, 60, 90, 8), 1001: (15, 121, 182, 15)}
    for depth, stages in units.items():
        scopes = {s.name.rpartition("/reduce/")[0] for s in g.plan(resnet(depth)).graph.states}
        found = [sum(f"stage{i}/" in scope for scope in scopes) for i in (1, 2, 3, 4)]
        assert tuple(found) == stages


def test_wrong_sizes():
    for model, sizes in (
        (resnet, {"depth": 51}),
        (resnet, {"units": (1, 2)}),
        (resnet, {"form": "rare"}),
        (preact_resnet, {"depth": 30}),
        (vgg16, {"image": 40}),
        (unet, {"image": 36, "depth": 3}),
        (gpt2, {"size": "tiny"}),
        (gpt2, {"seq_len": 2048}),
        (gpt2, {"width": 10, "heads": 3}),
        (bert, {"seq_len": 600}),
        (vit, {"image": 30}),
        (inception_v3, {"image": 74}),
        (inception_v3, {"width": 3}),
        (two_tower, {"layers": 0}),
    ):
        with pytest.raises(OptionError, match=f"{model.__name__}: |the width must"):
            model(**sizes)


IMAGE = {"batch": 2, "image": 32, "classes": 5}
TOKENS = {"layers": 2, "width": 8, "heads": 2, "seq_len": 5, "batch": 2, "vocab": 7}
SMALL = {
    "bert": lambda dtype="float32": bert(**TOKENS, masked=3, dtype=dtype),
    "densenet121": lambda dtype="float32": densenet121(
        **IMAGE, growth=4, blocks=(2, 2, 2), dtype=dtype
    ),
    "gpt2": lambda dtype="float32": gpt2(**TOKENS, dtype=dtype),
    "gpt2 composed": lambda dtype="float32": gpt2(**TOKENS, dtype=dtype, attention="composed"),
    "inception_v3": lambda dtype="float32": inception_v3(2, 75, 5, 2, dtype=dtype),
    "lstm": lambda dtype="float32": lstm(
        seq_len=3, batch=2, layers=2, hidden=8, inputs=5, classes=7, dtype=dtype
    ),
    "lstm by layer": lambda dtype="float32": lstm(
        seq_len=4, batch=2, layers=2, hidden=8, inputs=5, classes=7, by_layer=True, dtype=dtype
    ),
    "mlp": lambda dtype="float32": mlp(layers=3, hidden=8, inputs=6, batch=4, dtype=dtype),
    "mobilenet_v2": lambda dtype="float32": mobilenet_v2(**IMAGE, width=0.25, dtype=dtype),
    "preact_resnet": lambda dtype="float32": preact_resnet(11, batch=2, image=8, dtype=dtype),
    "resnet": lambda dtype="float32": resnet(
        units=(1, 1, 1, 1), batch=2, image=36, classes=5, dtype=dtype
    ),
    "resnet common": lambda dtype="float32": resnet(
        units=(1, 1, 1, 1), form="common", **IMAGE, dtype=dtype
    ),
    "two_tower": lambda dtype="float32": two_tower(4, 2, 6, 9, 3, dtype=dtype),
    "unet": lambda dtype="float32": unet(**IMAGE, width=4, depth=2, dtype=dtype),
    "vgg16": lambda dtype="float32": vgg16(**IMAGE, width=4, hidden=16, dtype=dtype),
    "vit": lambda dtype="float32": vit(
        **IMAGE, layers=2, width=8, heads=2, patch=16, drop=0.1, dtype=dtype
    ),
}


DEEP = (
    "bert", "densenet121", "gpt2 composed", "inception_v3", "mobilenet_v2", "preact_resnet",
    "resnet", "resnet common", "vgg16", "vit",
)  # fmt: skip
"""Networks of slow tests: beside them, unet is convolutional and gpt2 has attention."""


def quick_and_slow(names, slow):
    """Return all names as parameters, some of them marked slow."""
    return [pytest.param(n, marks=[pytest.mark.slow] if n in slow else []) for n in names]


def test_every_network_is_trained_small():
    assert {name.split()[0] for name in SMALL} == set(MODELS)


STRATEGIES = (
    ("none", "none", None), ("inplace", "none", None), ("sharing", "none", None),
    ("packed", "none", None), ("packed", "mirror", lambda number: 1),
    ("sharing", "mirror", lambda number: number // 2 % 2), ("packed", "cheap", None),
    ("packed", "sublinear", None), ("sharing", "recursive", None), ("packed", "optimal", 0.8),
)  # fmt: skip
"""Strategies: allocation, recomputation, and mirror counts or the part of the bytes as a budget."""

QUICK = [name for name in SMALL if name not in DEEP]


@pytest.mark.parametrize("name", QUICK)
def test_three_steps_are_bit_identical_under_several_plans(name):
    """Networks take turns with a third of the strategies each; all strategies occur."""
    check_three_steps(name, (STRATEGIES[0], *STRATEGIES[1:][QUICK.index(name) % 3 :: 3]))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_three_steps_are_bit_identical_under_every_plan(name):
    check_three_steps(name, STRATEGIES)


def check_three_steps(name, strategies):
    runs = []
    plain_maps = g.plan(SMALL[name](), optimizer=g.optim.SGD()).feature_map_bytes
    for strategy, recompute, again in strategies:
        loss = SMALL[name]()
        budget = int(again * plain_maps) if recompute == "optimal" else None
        if recompute == "mirror":
            traced = builder.trace({"loss": loss})
            first = traced.nodes[0].serial
            marked = rewrite(
                traced, lambda node, m=again, f=first: replace(node, mirror=m(node.serial - f))
            )
            loss = marked.outputs["loss"]
        program = g.compile(
            loss,
            optimizer=g.optim.SGD(0.05),
            allocate=strategy,
            recompute=recompute,
            feature_map_budget=budget,
            poison=True,
        )
        assert recompute != "none" or program.plan.recomputation.nodes == 0
        assert not budget or program.plan.feature_map_bytes <= budget
        assert recompute not in ("mirror", "optimal") or program.plan.recomputation.nodes > 0
        rng = np.random.default_rng(0)
        losses = []
        for _ in range(3):
            feeds = {
                x.name: rng.standard_normal(x.shape).astype(np.float32)
                if x.type.dtype.kind == "float"
                else rng.integers(0, 2, x.shape).astype(np.int32)
                for x in program.graph.inputs
                if x.default is None
            }
            losses.append(program.step(feeds)["loss"].tobytes())
        runs.append((losses, {n: a.tobytes() for n, a in program.states.items()}))
    assert all(run == runs[0] for run in runs)
    assert len(set(runs[0][0])) == 3


def test_recurrent_cells_against_their_formulas():
    from scipy.special import expit

    from graphc import gru_cell, gru_parameters, lstm_cell, lstm_parameters

    x, h, c = (g.input(n, (3, 4), "float64") for n in "xhc")
    with g.scope("l"):
        long = lstm_cell(x, h, c, lstm_parameters(4, 4, "float64"))
    with g.scope("g"):
        short = gru_cell(x, h, gru_parameters(4, 4, "float64"))
    program = g.compile(outputs={"h": long[0], "c": long[1], "gru": short}, poison=True)
    rng = np.random.default_rng(0)
    p = {n: rng.standard_normal(a.shape) for n, a in program.parameters.items()}
    program.parameters.update(p)
    feeds = {n: rng.standard_normal((3, 4)) for n in "xhc"}
    found = program.step(feeds)

    def gates(kind):
        a = feeds["x"] @ p[f"{kind}/input/weight"].T + p[f"{kind}/input/bias"]
        b = feeds["h"] @ p[f"{kind}/hidden/weight"].T + p[f"{kind}/hidden/bias"]
        return a, b

    i, n, f, o = np.split(sum(gates("l")), 4, 1)
    cell = expit(f) * feeds["c"] + expit(i) * np.tanh(n)
    np.testing.assert_allclose(found["c"], cell)
    np.testing.assert_allclose(found["h"], expit(o) * np.tanh(cell))
    (xr, xz, xn), (hr, hz, hn) = (np.split(part, 3, 1) for part in gates("g"))
    z, n = expit(xz + hz), np.tanh(xn + expit(xr + hr) * hn)
    np.testing.assert_allclose(found["gru"], (1 - z) * n + z * feeds["h"])
