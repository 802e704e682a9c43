"""Precision fp8: which layers have 8-bit operands, their scales, and steps against float64."""

import functools

import ml_dtypes
import numpy as np
import pytest
from ops.test_float8 import FORMATS
from runtime.ranks.threads import on_ranks
from runtime.states_on_host import planned as with_all_moments_on_host
from safetensors.numpy import load_file

import graphc as g
from graphc import Program, format_graph, parse_graph
from graphc.models import gpt2, lstm
from graphc.ops.float8 import HISTORY
from graphc.runtime.feeds import random_feeds
from graphc.runtime.ranks.lane import Lane

ROWS, WIDTH, CLASSES = 32, 64, 10
ADAM = g.optim.Adam(1e-2)


def mlp(batch=ROWS, inputs=48, depth=3, width=WIDTH):
    h, labels = g.input("x", (batch, inputs)), g.input("labels", (batch,), "int32")
    for layer in range(depth):
        h = g.relu(g.linear(h, width, name=f"layer{layer}"))
    return g.softmax_cross_entropy(g.linear(h, CLASSES, name="last"), labels)


def small_gpt2(**options):
    sizes = {"layers": 2, "width": 32, "heads": 2, "seq_len": 16, "batch": 2, "vocab": 30}
    return gpt2(**sizes, positions=16, drop=0.1, **options)


def feeds(step=0, batch=ROWS, inputs=48):
    rng = np.random.default_rng(step)
    x = rng.standard_normal((batch, inputs)) * 2.0 ** (step % 5 - 2)
    return {"x": x.astype(np.float32), "labels": rng.integers(0, CLASSES, batch).astype(np.int32)}


def training(loss, **options):
    return g.compile(loss, **{"optimizer": ADAM, "precision": "fp8", "seed": 5} | options)


def bits(program):
    return {name: np.asarray(array).tobytes() for name, array in program.states.items()}


def scales_of(states):
    """The names of the layers' operands that have a scale."""
    names = (name for name in states if name.startswith("fp8/"))
    return {name.removeprefix("fp8/").removesuffix("/scale") for name in names if "scale" in name}


def ops(plan, *names):
    return [node for node in plan.graph.nodes if node.op.name in names]


def said(plan):
    """The text of a plan on one line."""
    return " ".join(plan.text().split())


def plan_of(loss, **options):
    return g.plan(loss, **{"optimizer": ADAM, "precision": "fp8"} | options)


# --- which layers ---


def test_layers_before_the_last_have_8_bit_operands():
    plan = plan_of(mlp())
    assert len(ops(plan, "float8_linear")) == 3
    assert len(ops(plan, "float8_product")) == 5  # the input has no gradient
    assert [node.scope for node in ops(plan, "linear")] == ["last"]
    names = {state.name for state in plan.graph.states}
    assert scales_of(names) == {
        f"layer{i}/weight/{operand}" for i in range(3) for operand in ("rows", "weight", "gradient")
    }
    assert "3 of 4 linear layers; in bf16: last/weight (10 is no multiple of 16)" in said(plan)


def test_a_product_whose_extents_do_not_fit_stays_in_bf16():
    for sizes, found, reason in (
        ({"batch": 24}, 0, "24 is no multiple of 16"),
        ({"inputs": 40}, 2, "40 is no multiple of 16"),
        ({"width": 56}, 0, "56 is no multiple of 16"),
    ):
        plan = plan_of(mlp(**sizes))
        assert len(ops(plan, "float8_linear")) == found
        assert reason in said(plan)


def test_every_last_layer_stays_in_bf16():
    """Two heads of a network, one of them with extents that would fit."""
    x = g.input("x", (ROWS, WIDTH))
    h = g.relu(g.linear(x, WIDTH, name="trunk"))
    loss = g.mean(g.linear(h, 32, name="one")) + g.mean(g.power(g.linear(h, 16, name="two"), 2.0))
    plan = plan_of(loss)
    assert [node.scope for node in ops(plan, "float8_linear")] == ["trunk"]
    assert "1 of 3 linear layers; in bf16: one/weight (last), two/weight (last)" in said(plan)


@pytest.mark.parametrize("chunks", [False, True])
def test_linear_layers_of_a_transformer(chunks):
    """Attention and the projection to the vocabulary stay as they are, in chunks or not."""
    plan = plan_of(small_gpt2(), chunk_losses=chunks)
    assert len([n for n in ops(plan, "float8_linear") if n.phase == "forward"]) == 8
    assert not any("embedding" in name for name in scales_of(s.name for s in plan.graph.states))


def test_layers_of_the_same_rows_share_them():
    x = g.input("x", (ROWS, WIDTH))
    q, k = (g.linear(x, WIDTH, bias=False, name=name) for name in "qk")
    loss = g.mean(g.linear(q * k, 16, name="last"))
    plan = plan_of(loss)
    names = scales_of(state.name for state in plan.graph.states)
    assert {"q/weight/rows", "k/weight/weight", "q/weight/gradient"} <= names
    assert "k/weight/rows" not in names
    assert len(ops(plan, "quantize_both")) == 1


def test_a_weight_in_several_layers_has_one_scale():
    plan = plan_of(lstm(seq_len=3, batch=16, layers=1, hidden=32, inputs=16, classes=20))
    names = scales_of(state.name for state in plan.graph.states)
    weights = {name.rpartition("/")[0] for name in names}
    assert len(ops(plan, "float8_linear")) > len(weights)
    assert len(names) == 3 * len(weights)


def test_a_weight_that_is_stored_transposed():
    """x · w, as in ONNX: the weight is stored by columns for the product, by rows for dx."""

    def loss(transposed):
        x = g.relu(g.linear(g.input("x", (ROWS, WIDTH)), WIDTH, name="first"))
        shape = (WIDTH, 32)
        w = g.parameter("w", shape[::-1] if transposed else shape)
        y = g.matmul(x, w, transpose_b=True) if transposed else x @ w
        return g.mean(g.power(g.linear(g.tanh(y), 16, name="last"), 2.0))

    programs = [training(loss(flag), kernels="numpy") for flag in (False, True)]
    w = np.random.default_rng(1).standard_normal((WIDTH, 32)).astype(np.float32)
    given = {"x": np.random.default_rng(2).standard_normal((ROWS, WIDTH)).astype(np.float32)}
    others = {name: a for name, a in programs[0].parameters.items() if name != "w"}
    for program, array in zip(programs, (w, w.T), strict=True):
        program.parameters.update({**others, "w": array})
        assert len(ops(program.plan, "float8_linear")) == 2
        for _ in range(3):
            program.step(given)
    np.testing.assert_allclose(
        programs[0].parameters["w"], programs[1].parameters["w"].T, rtol=1e-5, atol=1e-6
    )


def test_a_layer_that_is_read_in_float32_alone():
    """Its bias has the dtype of its result, so the result stays bfloat16."""
    h = g.power(g.linear(g.input("x", (ROWS, WIDTH)), WIDTH, name="first"), 2.0)
    program = training(g.mean(g.linear(h, 16, name="last")))
    (layer,) = ops(program.plan, "float8_linear")
    assert layer.output.type.dtype == layer.inputs[5].type.dtype
    assert np.isfinite(program.step(x=np.ones((ROWS, WIDTH), np.float32))["loss"])


def test_precision_fp8_without_such_layers_is_bf16():
    loss = g.softmax_cross_entropy(
        g.linear(g.input("x", (ROWS, 48)), CLASSES), g.input("labels", (ROWS,), "int32")
    )
    plans = [plan_of(loss, precision=precision) for precision in ("bf16", "fp8")]
    assert format_graph(plans[0].graph) == format_graph(plans[1].graph)


# --- scales ---


def expected_scale(name, history):
    limit, most = np.float32(FORMATS[name][2]), max(history)
    factor = min(limit / most, np.float32(2.0**126)) if most > 0 else np.float32(1)
    return np.array([np.float32(1) / factor, factor], np.float32)


def test_scales_follow_a_plain_loop_over_twenty_steps():
    """Compares scales of the fed rows and the weights bit for bit; their magnitudes are known.

    Magnitudes of the rows change by powers of two from step to step.
    """
    program = training(mlp())
    rows, weights = [np.float32(0)] * HISTORY, [np.float32(0)] * HISTORY
    for step in range(20):
        given = feeds(step)
        rows = [np.abs(given["x"].astype(ml_dtypes.bfloat16)).max().astype(np.float32), *rows[:-1]]
        rows[0] = np.abs(given["x"]).max()
        weights = [np.abs(program.parameters["layer1/weight"]).max(), *weights[:-1]]
        program.step(given)
        for operand, history in (("layer0/weight/rows", rows), ("layer1/weight/weight", weights)):
            found = program.states[f"fp8/{operand}/history"]
            assert found.tobytes() == np.array(history, np.float32).tobytes()
            scale = program.states[f"fp8/{operand}/scale"]
            assert scale.tobytes() == expected_scale("float8_e4m3", history).tobytes()
        history = program.states["fp8/layer1/weight/gradient/history"]
        scale = program.states["fp8/layer1/weight/gradient/scale"]
        assert history[0] > 0
        assert scale.tobytes() == expected_scale("float8_e5m2", history).tobytes()


def test_magnitudes_are_those_of_all_micro_batches():
    program = training(mlp(), accumulate=2)
    parts = [feeds(step) for step in (0, 4)]  # the second is the larger one
    program.step({name: np.stack([part[name] for part in parts]) for name in parts[0]})
    found = program.states["fp8/layer0/weight/rows/history"]
    assert found[0] == np.abs(parts[1]["x"]).max()
    assert found[1] == 0


@pytest.mark.parametrize("shard", ["none", "states"])
def test_ranks_have_the_same_scales(shard):
    """Those of one process on the joint batch, up to the rounding of sums in other orders."""
    given = [feeds(step, 2 * ROWS) for step in range(3)]
    joint = training(mlp(2 * ROWS), kernels="numpy")
    for each in given:
        joint.step(each)

    def work(wire):
        plan = plan_of(mlp(), ranks=2, shard=shard, kernels="numpy")
        program = Program(plan, 5, lane=Lane(wire))
        for each in given:
            program.step({n: np.split(a, 2)[wire.rank] for n, a in each.items()})
        return {n: np.asarray(a) for n, a in program.states.items() if n.startswith("fp8/")}

    one, other = on_ranks(2, work)
    assert one.keys() == {name for name in joint.states if name.startswith("fp8/")}
    for name, array in one.items():
        assert array.tobytes() == other[name].tobytes()
        np.testing.assert_allclose(array, joint.states[name], rtol=0.1)
    exact = "fp8/layer0/weight/rows/history"
    assert one[exact].tobytes() == joint.states[exact].tobytes()


# --- numbers ---


def test_a_step_is_near_float64():
    """One layer between fed rows and a fixed head: its result and its gradients.

    A number is stored with a relative error of at most 2^-4 (e4m3) or 2^-3 (e5m2) and an absolute
    one of half the least subnormal divided by the scale; values in bfloat16 add 2^-8 each.
    """
    x, target = g.input("x", (ROWS, WIDTH)), g.input("target", (ROWS, 16))
    first = g.linear(x, WIDTH, bias=False, name="first")
    y = g.linear(first, 16, bias=False, name="head", trainable=False)
    program = training(
        g.sum(y * target), optimizer=g.optim.SGD(1.0), outputs={"first": first}, kernels="numpy"
    )
    rng = np.random.default_rng(0)
    given = {"x": rng.standard_normal((ROWS, WIDTH)).astype(np.float32),
             "target": rng.standard_normal((ROWS, 16)).astype(np.float32)}  # fmt: skip
    before = program.parameters["first/weight"]
    head = program.parameters["head/weight"].astype(np.float64)
    for _ in range(2):  # the second step has scales
        program.parameters["first/weight"] = before
        found = program.step(given)["first"].astype(np.float64)
    change = before.astype(np.float64) - program.parameters["first/weight"]
    wide, w = given["x"].astype(np.float64), before.astype(np.float64)
    dy = given["target"].astype(np.float64) @ head

    def errors(values, name):
        """Bounds of the errors of stored values, whose scale fits their largest magnitude."""
        mantissa, most = FORMATS[name][1], FORMATS[name][2]
        least = 2.0 ** (1 - {"float8_e4m3": 7, "float8_e5m2": 15}[name] - mantissa)
        return np.abs(values) * 2.0 ** -(mantissa + 1) + least / 2 * np.abs(values).max() / most

    def bound(a, b, errors_a, errors_b):
        product = errors_a @ np.abs(b) + np.abs(a) @ errors_b + errors_a @ errors_b
        return product + 2.0**-8 * (np.abs(a @ b) + product) + 1e-5

    ex, ew = errors(wide, "float8_e4m3"), errors(w, "float8_e4m3")
    assert (np.abs(found - wide @ w.T) <= bound(wide, w.T, ex, ew.T)).all()
    rounded = np.abs(given["target"]) @ np.abs(head) * 3 * 2.0**-8  # products in bfloat16
    edy = errors(dy, "float8_e5m2") * (1 + 2.0**-3) + rounded * (1 + 2.0**-3)
    assert (np.abs(change - dy.T @ wide) <= bound(dy.T, wide, edy.T, ex)).all()
    assert np.abs(change - dy.T @ wide).max() > 1e-3  # not computed in float32


def test_training_converges_like_bf16():
    rng = np.random.default_rng(0)
    given = feeds(2, 64)
    given["labels"] = (given["x"] @ rng.standard_normal((48, CLASSES))).argmax(1).astype(np.int32)
    losses = {}
    for precision in ("bf16", "fp8"):
        program = training(mlp(64), precision=precision)
        losses[precision] = [float(program.step(given)["loss"]) for _ in range(30)]
    for narrow, wide in zip(losses["fp8"], losses["bf16"], strict=True):
        assert abs(narrow - wide) <= 0.1 * wide + 0.02
    assert losses["fp8"][-1] < 0.01 * losses["fp8"][0]


# --- plans ---


STRATEGIES = [
    *({"allocate": name} for name in ("none", "inplace", "sharing", "coloring")),
    *({"recompute": name} for name in ("cheap", "mirror", "segments", "sublinear", "recursive")),
    {"budget": 0.97}, {"reorder": False}, {"streams": 2}, {"fuse": False},
]  # fmt: skip
NETWORKS = {"mlp": lambda: mlp(depth=6), "gpt2": small_gpt2}


@functools.cache
def reference(name, device):
    return g.plan(NETWORKS[name](), optimizer=ADAM, precision="fp8", device=device)


def steps_of(plan, steps=3, **options):
    program = g.bind(plan, seed=5, poison=True, **options)
    for step in range(steps):
        program.step({s.name: a for s, a in random_feeds(plan.graph, step).items()})
    return bits(program)


@functools.cache
def expected_bits(name):
    return steps_of(reference(name, "cpu"))


QUICK = ({"allocate": "inplace"}, {"recompute": "sublinear"}, {"streams": 2})
"""Strategies that attention is compared under in quick tests."""
FAST = [s for s in STRATEGIES if not {"sharing", "mirror", "recursive"} & set(s.values())]
"""Strategies that layers are compared under in quick tests."""


@pytest.mark.parametrize(
    ("name", "strategy"),
    [
        pytest.param(
            name,
            strategy,
            marks=[] if strategy in (QUICK if name == "gpt2" else FAST) else pytest.mark.slow,
        )
        for name in NETWORKS
        for strategy in STRATEGIES
    ],
    ids=str,
)
def test_bits_do_not_depend_on_the_strategy(name, strategy):
    if "budget" in strategy:
        strategy = {"budget": int(strategy["budget"] * reference(name, "cpu").arena_bytes)}
    plan = plan_of(NETWORKS[name](), **strategy)
    assert steps_of(plan) == expected_bits(name)


@pytest.mark.parametrize("name", ["mlp", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_bits_do_not_depend_on_where_moments_are(name):
    plan = with_all_moments_on_host(NETWORKS[name](), optimizer=ADAM, precision="fp8")
    assert plan.host_bytes
    assert steps_of(plan) == expected_bits(name)


def test_rows_are_saved_in_8_bits():
    """Between the passes, a relu of a layer has one byte per element more, and no other copy."""
    sizes = {}
    for precision in ("bf16", "fp8"):
        plan = plan_of(mlp(512, 512, 8, 512), precision=precision, recompute="none")
        forward = max(i for i, n in enumerate(plan.graph.nodes) if n.phase == "forward")
        sizes[precision] = sum(
            buffer.bytes for buffer in plan.live_at(forward) if buffer.kind == "feature map"
        )
    maps = 8 * 512 * 512
    assert sizes["bf16"] >= 2 * maps
    assert sizes["fp8"] <= sizes["bf16"] + 1.1 * maps  # relu's gradient reads its output


def test_gelu_keeps_its_output_in_8_bits_only():
    """Its gradient reads the input, so the output is needed by the next layer's product alone."""

    def loss():
        h = g.input("x", (512, 512))
        for layer in range(8):
            h = g.gelu(g.linear(h, 512, name=f"layer{layer}"))
        return g.mean(g.power(g.linear(h, 16, name="last"), 2.0))

    maps = {}
    for precision in ("bf16", "fp8"):
        plan = plan_of(loss(), precision=precision)
        maps[precision] = plan.feature_map_bytes
    assert maps["bf16"] - maps["fp8"] > 0.8 * 7 * 512 * 512


def test_a_plan_and_its_states_survive_files(tmp_path):
    plan = plan_of(mlp())
    g.save_plan(plan, tmp_path / "plan.json")
    loaded = g.load_plan(tmp_path / "plan.json")
    assert loaded.text() == plan.text()
    assert format_graph(parse_graph(format_graph(plan.graph))) == format_graph(plan.graph)
    one = g.bind(loaded, seed=5)
    one.step(feeds(0))
    one.save(tmp_path / "states.safetensors")
    other = g.bind(plan, seed=6)
    other.load(tmp_path / "states.safetensors")
    for step in (1, 2):
        one.step(feeds(step))
        other.step(feeds(step))
    assert bits(one) == bits(other)


def test_inference_reads_the_scales_of_training(tmp_path):
    loss = mlp()
    trained = training(loss, kernels="numpy")
    for step in range(3):
        trained.step(feeds(step))
    trained.save(tmp_path / "states.safetensors")
    program = g.compile(outputs={"loss": loss}, precision="fp8", kernels="numpy")
    assert not any("history" in name for name in program.states)
    saved = load_file(tmp_path / "states.safetensors")
    program.states.update({name: saved[name] for name in program.states})
    for name, array in program.states.items():
        assert array.tobytes() == np.asarray(trained.states[name]).tobytes()
    given = feeds(7)
    assert program.step(given)["loss"] == trained.step(given)["loss"]
