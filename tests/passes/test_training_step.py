"""Schedules, clipping, accumulation and mixed precision against formulas and plain training."""

import functools
import itertools
import math

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ir.builder import apply, state
from graphc.models import densenet121, gpt2, lstm, mlp, preact_resnet, vit
from graphc.ops.shape import Copy
from graphc.ops.update import LossScaleAttributes, LossScaleUpdate, SgdUpdate

RNG = np.random.default_rng(0)


def states(program):
    return {name: array.tobytes() for name, array in program.states.items()}


# --- schedules ---


def expected_rate(form, t, peak=0.5, floor=0.125, warmup=3, steps=11):
    if t < warmup:
        return peak * (t + 1) / warmup
    u = min((t - warmup) / (steps - warmup), 1)
    return {
        "constant": peak,
        "linear": (1 - u) * peak + u * floor,
        "cosine": floor + (peak - floor) * np.cos(u * np.pi / 2) ** 2,
        "exponential": math.exp((1 - u) * math.log(peak) + u * math.log(floor)),
    }[form]


@pytest.mark.parametrize("form", ["constant", "linear", "cosine", "exponential"])
def test_schedule(form):
    w, x = g.parameter("w", (2,)), g.input("x", (2,))
    schedule = g.optim.Schedule(0.5, steps=11, warmup=3, floor=0.125, form=form)
    program = g.compile(g.sum(w * x), optimizer=g.optim.SGD(schedule), poison=True)
    assert "learning_rate" in [node.op.name for node in program.graph.nodes]
    assert f"form='{form}'" in program.plan.text()
    for t in range(14):
        before = program.parameters["w"]
        program.step(x=np.ones(2, np.float32))
        np.testing.assert_allclose(before - program.parameters["w"], expected_rate(form, t), 1e-5)


@pytest.mark.parametrize(
    "settings",
    [
        {"form": "square"},
        {"steps": 0},
        {"warmup": 20},
        {"warmup": 10},
        {"steps": True},
        {"peak": "fast"},
        {"floor": 2.0},
        {"form": "exponential"},
        {"peak": -1.0},
    ],
)
def test_schedule_out_of_range(settings):
    with pytest.raises(OptionError):
        g.optim.Schedule(**{"peak": 1.0, "steps": 10, **settings})


# --- clipping ---


def two_parameters():
    a = g.parameter("a", (3,), "float64", g.Initial("normal", 1.0))
    b = g.parameter("b", (2, 2), "float64", g.Initial("normal", 1.0))
    return g.sum(a * g.input("u", (3,), "float64")) + g.sum(b * g.input("v", (2, 2), "float64"))


@pytest.mark.parametrize(("limit", "shrinks"), [(0.5, True), (1e3, False)])
def test_clipping_by_the_norm_of_all_gradients(limit, shrinks):
    u, v = RNG.standard_normal(3), RNG.standard_normal((2, 2))
    norm = math.sqrt((u**2).sum() + (v**2).sum())
    program = g.compile(two_parameters(), optimizer=g.optim.SGD(1.0), clip_norm=limit, poison=True)
    before = program.parameters
    a, b = before["a"], before["b"]
    program.step(u=u, v=v)
    factor = limit / norm if shrinks else 1.0
    np.testing.assert_allclose(a - program.parameters["a"], u * factor, rtol=1e-12)
    np.testing.assert_allclose(b - program.parameters["b"], v * factor, rtol=1e-12)
    assert "clip_norm" in program.plan.text()


# --- accumulation ---


def classify(batch, dropout=0.0):
    x, labels = g.input("x", (batch, 6), "float64"), g.input("labels", (batch,), "int32")
    h = g.relu(g.linear(x, 8, name="a"))
    logits = g.linear(g.dropout(h, dropout), 3, name="b")
    return g.softmax_cross_entropy(logits, labels), logits


def test_micro_batches_train_like_one_batch():
    k, batch = 3, 4
    x = RNG.standard_normal((k, batch, 6))
    labels = RNG.integers(0, 3, (k, batch)).astype(np.int32)
    parts, (whole, _) = classify(batch), classify(k * batch)
    optimizer = g.optim.Adam(0.01)
    split = g.compile(
        parts[0], outputs={"logits": parts[1]}, optimizer=optimizer, accumulate=k, poison=True
    )
    joined = g.compile(whole, optimizer=optimizer)
    for _ in range(3):
        found = split.step(x=x, labels=labels)
        wanted = joined.step(x=x.reshape(-1, 6), labels=labels.reshape(-1))
        assert found["logits"].shape == (k, batch, 3)
        np.testing.assert_allclose(found["loss"], wanted["loss"], rtol=1e-12)
        for name, array in joined.parameters.items():
            np.testing.assert_allclose(split.parameters[name], array, rtol=1e-9, atol=1e-12)
    assert "accumulate=3" in split.plan.text()
    assert split.plan.summary("m")["settings"]["accumulate"] == 3


def test_micro_batches_run_one_after_another():
    """Feature maps of one micro-batch make room for the next."""
    sizes = {"layers": 6, "hidden": 64, "inputs": 16}
    one = g.plan(mlp(**sizes, batch=64), optimizer=g.optim.SGD())
    four = g.plan(mlp(**sizes, batch=64), optimizer=g.optim.SGD(), accumulate=4)
    whole = g.plan(mlp(**sizes, batch=256), optimizer=g.optim.SGD())
    assert whole.feature_map_bytes > 3 * one.feature_map_bytes
    # beside one micro-batch's: the sum of each parameter's gradient so far
    sums = sum(s.type.bytes for s in one.graph.states)
    assert four.feature_map_bytes <= one.feature_map_bytes + 2 * sums


def test_micro_batches_draw_masks_of_their_own():
    loss, logits = classify(4, dropout=0.5)
    program = g.compile(loss, outputs={"logits": logits}, optimizer=g.optim.SGD(0.0), accumulate=2)
    x = np.broadcast_to(RNG.standard_normal((4, 6)), (2, 4, 6)).copy()
    found = program.step(x=x, labels=np.zeros((2, 4), np.int32))["logits"]
    assert not np.array_equal(found[0], found[1])


def test_running_statistics_move_once_towards_the_average():
    x = g.input("x", (4, 3), "float64")
    loss = g.mean(g.batch_norm(x, momentum=0.25) ** 2)
    program = g.compile(loss, optimizer=g.optim.SGD(0.0), accumulate=2, poison=True)
    fed = RNG.standard_normal((2, 4, 3))
    program.step(x=fed)
    found = program.states
    mean, variance = fed.mean(1).mean(0), fed.var(1, ddof=1).mean(0)
    np.testing.assert_allclose(found["norm/running_mean"], 0.25 * mean, rtol=1e-9)
    np.testing.assert_allclose(found["norm/running_variance"], 0.75 + 0.25 * variance, rtol=1e-9)


# --- mixed precision ---


def test_float16_skips_a_step_that_overflows_and_halves_the_scale():
    x, labels = g.input("x", (4, 6)), g.input("labels", (4,), "int32")
    h = g.batch_norm(g.linear(x, 8, name="a"), name="a/norm")
    loss = g.softmax_cross_entropy(g.linear(g.dropout(h, 0.1), 3, name="b"), labels)
    program = g.compile(loss, optimizer=g.optim.Adam(0.01), precision="fp16", poison=True)
    feeds = {"x": RNG.standard_normal((4, 6)).astype(np.float32), "labels": np.arange(4) % 3}
    feeds["labels"] = feeds["labels"].astype(np.int32)
    program.step(feeds)
    before = program.states
    kept = {name: before[name] for name in before if not name.startswith(("loss_scale", "counter"))}
    program.step(feeds | {"x": np.full((4, 6), 1e5, np.float32)})
    for name, array in kept.items():
        np.testing.assert_array_equal(program.states[name], array)
    assert program.states["loss_scale/factor"] == 2.0**15
    assert program.states["loss_scale/good_steps"] == 0
    program.step(feeds)
    assert all(np.isfinite(array).all() for array in program.states.values())
    assert any(not np.array_equal(program.states[name], a) for name, a in kept.items())


def test_the_loss_scale_doubles_after_good_steps():
    scale, good = (
        state(n, (), "float32", v, "counter") for n, v in (("c/scale", 8), ("c/good", 0))
    )
    finite = g.less(g.input("x", ()), 1.0)
    attributes = LossScaleAttributes(3.0)
    node = apply(LossScaleUpdate, scale, good, finite, attributes=attributes)
    outputs = dict(zip(("scale", "good"), node.outputs, strict=True))
    program = g.compile(outputs=outputs)
    seen = []
    for x in (0, 0, 0, 0, 2, 0, 2):
        found = program.step(x=np.float32(x))
        seen.append((float(found["scale"]), float(found["good"])))
    assert seen == [(8, 1), (8, 2), (16, 0), (16, 1), (8, 0), (8, 1), (4, 0)]


def test_an_update_that_cannot_be_skipped_is_refused():
    class Plain:
        def begin(self, dtype):
            return self

        def update(self, parameter, gradient):
            return apply(Copy, parameter)

    with pytest.raises(OptionError, match="cannot be skipped"):
        g.plan(mlp(layers=1, batch=2), optimizer=Plain(), precision="fp16")
    assert SgdUpdate.inputs[-1] == "*ok"


NETWORKS = {
    "mlp": lambda: mlp(layers=3, hidden=32, inputs=16, batch=64),
    "preact_resnet": lambda: preact_resnet(11, batch=4, image=8),
    "densenet121": lambda: densenet121(8, 32, 5, growth=4, blocks=(2, 2, 2)),
    "gpt2": lambda: gpt2(layers=2, width=16, heads=2, seq_len=8, batch=2, vocab=11, drop=0.0),
}


def feeds_of(program, seed=0):
    rng = np.random.default_rng(seed)
    return {
        x.name: rng.standard_normal(x.shape).astype(np.float32)
        if x.type.dtype.kind == "float"
        else rng.integers(0, 5, x.shape).astype(np.int32)
        for x in program.graph.inputs
        if x.default is None
    }


@functools.cache
def losses_in(precision, name):
    """Return the losses of three steps in a precision, with states in float32."""
    optimizer = g.optim.Momentum(0.02)
    options = {"precision": precision, "kernels": "numpy", "poison": True}
    program = g.compile(NETWORKS[name](), optimizer=optimizer, **options)
    trained = [s for s in program.graph.states if s.role in ("parameter", "statistic")]
    assert all(s.type.dtype.name == "float32" for s in trained)
    assert program.plan.graph.outputs["loss"].type.dtype.name == "float32"
    return [float(program.step(feeds_of(program))["loss"]) for _ in range(3)]


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        *itertools.product(("mlp", "gpt2"), ("bf16", "fp16")),
        ("preact_resnet", "bf16"),
        pytest.param("preact_resnet", "fp16", marks=pytest.mark.slow),
        *(pytest.param("densenet121", n, marks=pytest.mark.slow) for n in ("bf16", "fp16")),
    ],
)
def test_sixteen_bits_stay_near_thirty_two(name, precision):
    found, wanted = losses_in(precision, name), losses_in("fp32", name)
    np.testing.assert_allclose(found, wanted, rtol=0.03)
    assert found != wanted


@pytest.mark.parametrize(
    "network",
    [
        lambda: preact_resnet(11, batch=32),
        lambda: vit(layers=2),
        pytest.param(lambda: preact_resnet(29, batch=32), marks=pytest.mark.slow),
        pytest.param(lambda: densenet121(32, 224), marks=pytest.mark.slow),
    ],
    ids=["preact_resnet", "vit", "a deeper preact_resnet", "densenet121"],
)
def test_feature_maps_take_half(network):
    full, half = (
        g.plan(network(), optimizer=g.optim.SGD(), precision=p).feature_map_bytes
        for p in ("fp32", "bf16")
    )
    assert 0.49 < half / full < 0.53


SIXTEEN = {"bf16": 2.0**-8, "fp16": 2.0**-11}


@pytest.mark.parametrize("precision", SIXTEEN)
@pytest.mark.parametrize("variance", [1e-4, 1.0, 9e4])
def test_inference_normalises_in_float32(precision, variance):
    """Running statistics that float16 could not hold."""
    x = g.input("x", (8, 4))
    outputs = {"y": g.batch_norm(x, name="n")}
    rng = np.random.default_rng(0)
    fed = {"x": (100 + np.sqrt(variance) * rng.standard_normal((8, 4))).astype(np.float32)}
    found = {}
    for choice in ("fp32", precision):
        program = g.compile(outputs=outputs, precision=choice)
        program.states["n/running_mean"] = np.full(4, 100, np.float32)
        program.states["n/running_variance"] = np.full(4, variance, np.float32)
        found[choice] = program.step(fed)["y"]
    rounding = SIXTEEN[precision] * np.abs(fed["x"]).max() / np.sqrt(variance + 1e-5)
    limit = rounding + SIXTEEN[precision] * np.abs(found["fp32"]).max()
    assert np.abs(found[precision] - found["fp32"]).max() <= limit


@pytest.mark.parametrize("precision", SIXTEEN)
def test_outputs_that_are_parameters_keep_every_bit(precision):
    w = g.parameter("w", (3, 4), initial=g.Initial("normal", 1.0))
    loss = g.mean(g.matmul(g.input("x", (2, 3)), w) ** 2.0)
    program = g.compile(
        loss, outputs={"w": w, "t": g.transpose(w), "twice": g.concat([w, w])},
        optimizer=g.optim.SGD(0.1), precision=precision,
    )  # fmt: skip
    before = program.parameters["w"]
    found = program.step(x=np.ones((2, 3), np.float32))
    for name, wanted in (("w", before), ("t", before.T), ("twice", np.concatenate([before] * 2))):
        np.testing.assert_array_equal(found[name], wanted)


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_of_networks_of_every_dtype(dtype, precision):
    network = mlp(layers=2, hidden=8, inputs=4, batch=4, dtype=dtype)
    program = g.compile(network, optimizer=g.optim.SGD(0.1), precision=precision)
    x = np.ones((4, 4)).astype(g.input("x", (), dtype).type.dtype.numpy)
    losses = [float(program.step(x=x, labels=np.zeros(4, np.int32))["loss"]) for _ in range(9)]
    assert losses[-1] < losses[0]


def test_large_errors_do_not_overflow_in_float16():
    x, t = g.input("x", (4, 3)), g.input("t", (4, 2))
    loss = g.mse(g.linear(x, 2, name="l"), t)
    program = g.compile(loss, optimizer=g.optim.SGD(0.0), precision="fp16")
    fed = {"x": np.ones((4, 3), np.float32), "t": np.full((4, 2), 3000, np.float32)}
    assert float(program.step(fed)["loss"]) == pytest.approx(9e6, rel=0.01)


def test_a_shared_weight_is_narrowed_once_a_phase_and_its_gradients_summed_in_float32():
    graph = g.plan(
        lstm(seq_len=5, batch=2, layers=1, hidden=4, inputs=3, classes=3),
        optimizer=g.optim.SGD(), precision="bf16",
    ).graph  # fmt: skip
    casts = [n for n in graph.nodes if n.op.name == "cast" and n.inputs[0] in graph.states]
    per_state = {s: [n.phase for n in casts if n.inputs[0] is s] for s in graph.states}
    assert all(len(phases) <= 2 for phases in per_state.values())
    for node in graph.nodes:
        if node.op.name == "sgd_update":
            assert node.inputs[1].type.dtype.name == "float32"
            if node.inputs[1].node.op.name == "add":
                assert {v.type.dtype.name for v in node.inputs[1].node.inputs} == {"float32"}


def test_a_users_own_cast_is_not_made_again():
    w = g.parameter("w", (4, 4), initial=g.Initial("normal", 1.0))
    x = g.input("x", (2, 4), "float64")
    plan = g.plan(g.mean(g.matmul(x, g.cast(w, "float64")) ** 2.0), optimizer=g.optim.SGD())
    assert plan.recomputation.nodes == 0


def test_skipped_steps_do_not_count_for_adam():
    """As if they had not been: the first real step is as long as the first step of a run."""
    w = g.parameter("w", (1,))
    loss = g.sum(g.mul(w, g.input("x", (1,))))
    program = g.compile(loss, optimizer=g.optim.Adam(0.125), precision="fp16")
    for _ in range(3):
        program.step(x=np.array([np.inf], np.float32))
    assert program.states["counter/step"] == 0
    program.step(x=np.ones(1, np.float32))
    np.testing.assert_allclose(program.parameters["w"], [-0.125], rtol=1e-5)


OPTIONS = {
    "clip": {"clip_norm": 0.1},
    "accumulate": {"accumulate": 3},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16", "clip_norm": 0.1, "accumulate": 2},
}


QUICK = [*(("mlp", option) for option in OPTIONS), ("gpt2", "fp16")]
"""The last option has most of the others."""


@pytest.mark.parametrize(
    ("name", "option"),
    [
        pytest.param(*case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(NETWORKS, OPTIONS)
    ],
)
def test_every_plan_gives_the_same_bits(name, option):
    runs = []
    for allocate, again in (
        ("none", 0),
        ("inplace", 0),
        ("sharing", 0),
        ("packed", 0),
        ("packed", 1),
    ):
        with g.mirror(again):
            loss = NETWORKS[name]()
        program = g.compile(
            loss, optimizer=g.optim.AdamW(0.01), allocate=allocate, poison=True,
            recompute="mirror" if again else "none", **OPTIONS[option],
        )  # fmt: skip
        text = g.format_graph(program.graph)
        assert g.format_graph(g.parse_graph(text)) == text
        losses = [program.step(feeds_of(program, seed))["loss"].tobytes() for seed in range(3)]
        runs.append((losses, states(program)))
    assert all(run == runs[0] for run in runs)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"clip_norm": 0.0}, "clip_norm"),
        ({"clip_norm": float("nan")}, "clip_norm"),
        ({"accumulate": 0}, "accumulate"),
        ({"accumulate": 1.5}, "accumulate"),
        ({"precision": "int8"}, "precision"),
    ],
)
def test_options_out_of_range(options, match):
    with pytest.raises(OptionError, match=match):
        g.plan(mlp(), optimizer=g.optim.SGD(), **options)


def test_training_options_need_an_optimizer():
    with pytest.raises(OptionError, match="give an optimizer"):
        g.plan(mlp(), clip_norm=1.0)
