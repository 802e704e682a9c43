"""Steps with 16-bit operands: attention over several tiles, and bits under strategies."""

import numpy as np
import pytest
from on_gpu.test_programs import states
from runtime.emulated_gpu.twins import SEED, assert_nan_stays, bits, trained

import graphc as g
from graphc.models import gpt2, resnet

PADDED = np.arange(150) < 131
CASES = {
    "full": (4, 4, 256, 256, {}),
    "causal": (4, 4, 256, 256, {"causal": True}),
    "parts of tiles": (2, 2, 130, 150, {"causal": True}),
    "shared heads": (8, 2, 192, 192, {"causal": True}),
    "mask": (2, 2, 130, 150, {"mask": PADDED}),
    "dropout": (4, 4, 256, 256, {"drop": 0.1, "causal": True}),
}
"""Heads of queries and of keys, rows, columns, options; 64 elements a row."""

SERVED = ("full", "causal")
"""Cases that cuDNN serves on every GPU with engines for attention in 16 bits."""


def attending(case, dtype):
    """The mean of weighted results, whose parameters are the operands."""
    heads, key_heads, rows, columns, options = CASES[case]
    options = dict(options)
    if "mask" in options:
        options["mask"] = g.constant(options["mask"])
    q, kv = (2, heads, rows, 64), (2, key_heads, columns, 64)
    operands = [
        g.parameter(name, shape, dtype, g.Initial("normal", 1.0))
        for name, shape in zip("qkv", (q, kv, kv), strict=True)
    ]
    weights = np.random.default_rng(3).standard_normal(q).astype(dtype)
    return g.mean(g.attention(*operands, **options) * g.constant(weights))


def gradients(program):
    """The differences that a step makes."""
    before = {name: np.array(program.states[name], np.float64) for name in "qkv"}
    program.step({})
    return {name: before[name] - np.asarray(program.states[name], np.float64) for name in before}


@pytest.mark.parametrize("cudnn", [False, True])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_narrow_attention_has_the_gradients_of_float64(request, case, precision, cudnn):
    if cudnn:
        request.getfixturevalue("driver")
    options = {"optimizer": g.optim.SGD(1e5), "seed": SEED}
    expected = gradients(g.compile(attending(case, "float64"), **options))
    program = g.compile(
        attending(case, "float32"), device="cuda", precision=precision, cudnn=cudnn, **options
    )
    found = gradients(program)
    for name, exact in expected.items():
        error = np.linalg.norm(found[name] - exact) / np.linalg.norm(exact)
        assert error < 1e-2, name
    if cudnn and case in SERVED:
        assert program.report.calls["cudnn"] >= 2


TOKENS = {"layers": 1, "width": 64, "heads": 1, "seq_len": 128, "batch": 2, "vocab": 97}
NETWORKS = {
    "gpt2": lambda: gpt2(**TOKENS, drop=0.0),
    "gpt2, dropout": lambda: gpt2(**TOKENS, drop=0.1),
    "resnet": lambda: resnet(batch=2, image=32, classes=5, units=(1, 1, 1, 1)),
}
"""Networks whose attention or convolutions cuDNN computes."""


@pytest.mark.parametrize("name", NETWORKS)
def test_strategies_change_no_bit_in_16_bits(name):
    options = {"precision": "bf16", "optimizer": g.optim.Adam(1e-3)}
    plain = bits(trained(NETWORKS[name](), "cuda", **options))
    for each in (
        {}, {"allocate": "none"}, {"recompute": "sublinear"}, {"streams": 3}, {"poison": True}
    ):  # fmt: skip
        assert bits(trained(NETWORKS[name](), "cuda", **options, **each)) == plain, each


@pytest.mark.parametrize("name", ["gpt2", "resnet"])
def test_recorded_engines_give_the_same_bits(name, driver, tmp_path):
    record = tmp_path / "engines.json"
    options = {"precision": "bf16", "cudnn": record}
    runs = [bits(trained(NETWORKS[name](), "cuda", **options)) for _ in range(2)]
    assert '"engine"' in record.read_text()
    assert runs[0] == runs[1]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_states_on_the_host_change_no_bit(precision):
    network = NETWORKS["gpt2"]
    options = {"optimizer": g.optim.Adam(1e-2), "precision": precision}
    plain = g.plan(network(), device="cuda", **options)
    moved = g.plan(network(), device="cuda", host_states="moments", **options)
    assert moved.host_state_bytes
    runs = []
    for each in (plain, moved):
        program = g.bind(each, seed=SEED)
        fed = {s.name: a for s, a in g.runtime.feeds.random_feeds(each.graph, 0).items()}
        losses = [program.step(fed)["loss"].tobytes() for _ in range(4)]
        runs.append((losses, states(program)))
    assert runs[0] == runs[1]


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
@pytest.mark.parametrize("activation", [g.relu, g.relu6, g.gelu])
def test_nan_in_a_feed_is_nan_in_all_later_losses(activation, precision):
    """An epilogue of a product that takes the maximum of x and 0 turns NaN into 0."""
    x = g.input("x", (64, 64))
    h = g.linear(activation(g.linear(x, 64, name="first")), 64, name="second")
    loss = g.mean(g.linear(activation(h), 8, name="third") ** 2)
    program = g.compile(loss, optimizer=g.optim.SGD(0.1), device="cuda", precision=precision)
    assert_nan_stays(program, (64, 64))
