"""Whole programs on an emulated GPU: its kernels and products at the addresses of its plan.

The arena starts full of NaN: a kernel that reads what is not there, writes elsewhere, or disagrees
with NumPy's shows in the parameters.
"""

import sys

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.networks import (
    SEED,
    bits,
    branches,
    experts,
    fed,
    fused_gpt2,
    masked_heads,
    on_gpu,
    plan_of,
    remapped,
    resampled,
    small_autoencoder,
    small_convolutions,
    small_gpt2,
    small_mlp,
    small_mobilenet,
    small_resnet,
    small_unet,
    trained,
    trained_each,
    wide_resnet,
)
from runtime.emulated_gpu.twins import assert_nan_stays

import graphc as g
from graphc import Program
from graphc.devices.device import find_device
from graphc.errors import FeedError, GpuUnavailable, NonFiniteError, OptionError
from graphc.models import lstm, mlp
from graphc.runtime.gpu.backend import GpuBackend

GROUPS = g.optim.Groups(
    [("head/weight", g.optim.LAMB(1e-2)), ("head/bias", g.optim.Lion(1e-2))],
    default=g.optim.Muon(1e-2, others=g.optim.RMSProp(1e-2, momentum=0.5, centered=True)),
)
CASES = {
    "resnet, momentum": (small_resnet, g.optim.Momentum(1e-2), {}, 1e-8),
    "resnet, recomputed": (
        small_resnet, g.optim.Momentum(1e-2), {"recompute": "sublinear"}, 1e-8
    ),
    "resnet, accumulated": (small_resnet, g.optim.SGD(1e-2), {"accumulate": 3}, 1e-8),
    "convolutions, bf16": (
        lambda: small_convolutions("float32"), g.optim.SGD(1e-1), {"precision": "bf16"}, 2e-2
    ),
    "unet, adam": (small_unet, g.optim.Adam(1e-3), {}, 1e-8),
    "mobilenet, momentum": (small_mobilenet, g.optim.Momentum(1e-2), {}, 1e-8),
    "resampled, sgd": (resampled, g.optim.SGD(1e-1), {}, 1e-10),
    "remapped, sgd": (remapped, g.optim.SGD(1e-1), {}, 1e-10),
    "experts, sgd": (experts, g.optim.SGD(1e-1), {}, 1e-8),
    "autoencoder, noise": (
        small_autoencoder, g.optim.SGD(1e-2), {"recompute": "sublinear", "accumulate": 2}, 1e-9
    ),
    # Gradients of 0, such as those of keys' biases, are rounding errors of about 1e-16, which
    # RMSProp divides by its epsilon of 1e-8.
    "masked heads, groups": (masked_heads, GROUPS, {}, 4e-8),
    "mlp of the zoo, adam": (
        lambda: mlp(layers=3, hidden=16, inputs=7, classes=3, batch=5), g.optim.Adam(1e-2), {}, 1e-4
    ),
    "mlp, momentum": (small_mlp, g.optim.Momentum(1e-2), {}, 1e-9),
    "mlp, accumulated": (small_mlp, g.optim.SGD(1e-2), {"accumulate": 2}, 1e-9),
    "mlp, fp16": (
        lambda: small_mlp("float32"), g.optim.Adam(1e-2), {"precision": "fp16"}, 2e-2
    ),
    "gpt2, adamw": (small_gpt2, g.optim.AdamW(1e-2), {}, 1e-8),
    "gpt2, fused attention": (
        fused_gpt2, g.optim.AdamW(1e-2), {"recompute": "sublinear"}, 1e-8
    ),
    "gpt2, fused attention with dropout": (
        lambda: fused_gpt2(drop=0.3), g.optim.AdamW(1e-2), {"recompute": "sublinear"}, 1e-8
    ),
    "gpt2, fused attention with dropout, bf16": (
        lambda: fused_gpt2("float32", 0.3), g.optim.SGD(0.5), {"precision": "bf16"}, 1e-2
    ),
    # Not Adam's: a bias of keys has a gradient of 0 but for rounding, which Adam would make a step.
    "gpt2, fused attention, bf16": (
        lambda: fused_gpt2("float32"), g.optim.SGD(0.5), {"precision": "bf16"}, 1e-2
    ),
    "gpt2, clipped, recomputed": (
        small_gpt2, g.optim.AdamW(1e-2), {"clip_norm": 0.1, "recompute": "sublinear"}, 1e-8
    ),
    "gpt2, bf16": (
        lambda: small_gpt2("float32"), g.optim.AdamW(1e-2), {"precision": "bf16"}, 5e-2
    ),
    # A number that the two round to different sides in bfloat16 may become another 8-bit one.
    "gpt2, fp8": (
        lambda: fused_gpt2("float32"), g.optim.SGD(0.5), {"precision": "fp8"}, 5e-2
    ),
}  # fmt: skip


SLOW = (
    "resnet, accumulated", "resnet, recomputed", "mobilenet, momentum", "unet, adam",
    "mlp, accumulated", "mlp of the zoo, adam", "gpt2, bf16", "gpt2, clipped, recomputed",
    "gpt2, fused attention", "gpt2, fused attention with dropout, bf16",
)  # fmt: skip


@pytest.mark.parametrize("activation", [g.relu, g.relu6, g.leaky_relu, g.gelu, g.hard_sigmoid])
def test_nan_in_a_feed_is_nan_in_all_later_losses(activation):
    """An epilogue or kernel that takes the maximum of x and 0 may turn NaN into 0."""
    x = g.input("x", (8, 6))
    h = g.linear(activation(g.linear(x, 5, name="first")), 4, name="second")
    loss = g.mean(g.linear(activation(h), 3, name="third") ** 2)
    program, _ = on_gpu(g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda"))
    assert_nan_stays(program, (8, 6))


@pytest.mark.parametrize(
    ("network", "optimizer", "options", "tolerance"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, case in CASES.items()
    ],
    ids=CASES,
)
def test_steps_equal_the_cpu_program(network, optimizer, options, tolerance):
    loss = network()
    plan = g.plan(loss, optimizer=optimizer, device="cuda", **options)
    emulated, device = on_gpu(plan)
    program = Program(g.plan(loss, optimizer=optimizer, **options), SEED)
    feeds = fed(plan)
    for _ in range(3):
        expected, found = program.step(feeds), emulated.step(feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance)
    for name, found in emulated.states.items():
        expected = program.states[name].astype(np.float64)
        found = found.astype(np.float64)
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance, err_msg=name)
    assert device.allocations == [plan.arena_bytes]
    assert (device.counts["captures"], device.counts["replays"]) == (1, 2)


@pytest.mark.slow
def test_a_bottleneck_resnet_equals_the_cpu_program():
    test_steps_equal_the_cpu_program(wide_resnet, g.optim.Momentum(1e-2), {}, 1e-8)


@pytest.mark.parametrize(
    "network",
    [
        small_mlp,
        pytest.param(small_gpt2, marks=pytest.mark.slow),
        pytest.param(fused_gpt2, marks=pytest.mark.slow),
        branches,
        small_convolutions,
    ],
)
def test_all_strategies_have_the_same_bits(network):
    strategies = (
        {}, {"allocate": "none"}, {"allocate": "inplace"}, {"allocate": "sharing"},
        {"recompute": "cheap"}, {"recompute": "sublinear"}, {"recompute": "recursive"},
        {"recompute": "optimal"}, {"reorder": False},
    )  # fmt: skip
    found = trained_each([plan_of(network, **options) for options in strategies])
    for options, run in zip(strategies, found, strict=True):
        assert run == found[0], options


@pytest.mark.parametrize("precision", ["bf16", "fp8"])
def test_tensor_cores_have_the_same_bits(precision):
    """Those of attention, and those of products with 8-bit operands."""
    options = {"network": lambda: fused_gpt2("float32"), "precision": precision}
    strategies = (
        {}, {"allocate": "none"}, {"recompute": "sublinear"}, {"recompute": "recursive"},
    )  # fmt: skip
    found = trained_each([plan_of(**options, **strategy) for strategy in strategies], steps=2)
    for strategy, run in zip(strategies, found, strict=True):
        assert run == found[0], strategy


def test_without_a_graph_every_call_is_made_anew():
    plan = plan_of()
    captured, plain = (trained(plan, cuda_graph=flag) for flag in (True, False))
    assert captured[:2] == plain[:2]
    assert plain[2].counts["captures"] == 0
    assert 2 * plain[2].counts["calls"] == 3 * captured[2].counts["calls"]


def test_everything_is_allocated_before_the_first_step():
    plan = plan_of()
    program, device = on_gpu(plan)
    before = dict(device.counts)
    for step in range(5):
        program.step(fed(plan, step))
    assert device.allocations == [plan.arena_bytes] == [program.arena_bytes]
    assert device.counts["pinned"] == before["pinned"]


def test_poison_changes_nothing():
    plan = plan_of(small_mlp, recompute="sublinear")
    assert trained(plan, poison=True)[:2] == trained(plan)[:2]


def test_steps_one_after_another():
    """The next feeds are given before the outputs of a step are taken."""
    plan = plan_of()
    one, _ = on_gpu(plan)
    other, _ = on_gpu(plan)
    batches = [fed(plan, step) for step in range(5)]
    expected = [one.step(batch)["loss"] for batch in batches]
    assert [outputs["loss"] for outputs in other.steps(batches)] == expected
    assert bits(one) == bits(other)


def counted():
    """What comes out is what went in, and how many steps there were."""
    x = g.input("x", (3,))
    weight = g.parameter("w", (3,), initial=g.Initial("constant", 0.0))
    return {"x": x * 2.0, "loss": g.mean(weight * x)}


def test_loops_over_one_program_do_not_mix():
    outputs = counted()
    loss = outputs.pop("loss")
    plan = g.plan(loss, outputs=outputs, optimizer=g.optim.SGD(1.0), device="cuda")
    program, _ = on_gpu(plan)

    def batches(start):
        return ({"x": np.full(3, start + i, np.float32)} for i in range(4))

    pairs = zip(program.steps(batches(1)), program.steps(batches(10)), strict=True)
    found = []
    for one, other in pairs:
        between = program.step(x=np.full(3, 100.0, np.float32))
        found.append((one["x"][0], other["x"][0], between["x"][0]))
    assert found == [(2 * (1 + i), 2 * (10 + i), 200) for i in range(4)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_states_are_those_behind_the_outputs(device):
    """The next batch is taken, and not run; what is wrong with it shows behind the outputs."""
    outputs = counted()
    loss = outputs.pop("loss")
    plan = g.plan(loss, outputs=outputs, optimizer=g.optim.SGD(3.0), device=device)
    program = Program(plan) if device == "cpu" else on_gpu(plan)[0]
    good, bad = {"x": np.ones(3, np.float32)}, {"x": np.ones(2, np.float32)}
    seen = []
    steps = program.steps([good, good, bad])
    for _ in range(2):
        seen.append((float(next(steps)["loss"]), float(program.parameters["w"][0])))
    with pytest.raises(FeedError, match="shape"):
        next(steps)
    assert seen == [(0.0, -1.0), (-1.0, -2.0)]


def test_a_step_that_fails_does_not_warm_up():
    plan = plan_of()
    program, device = on_gpu(plan)
    run = device.run
    device.run = None
    with pytest.raises(TypeError):
        program.step(fed(plan))
    device.run = run
    program.step(fed(plan))
    assert device.counts["captures"] == 0
    program.step(fed(plan))
    assert device.counts["captures"] == 1


def test_options_that_a_gpu_cannot_have():
    with pytest.raises(OptionError, match="must be a multiple of 256"):
        plan_of(alignment=64)
    with pytest.raises(OptionError, match="tf32 products require a GPU"):
        g.plan(branches(), precision="tf32")
    with pytest.raises(OptionError, match="another kind"):
        g.plan(branches(), device=find_device("a100"), roofline="cpu")
    with pytest.raises(OptionError, match="cudnn and tuning apply only to GPUs"):
        g.compile(branches(), cudnn=True)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert g.plan(branches(), device="auto").device.kind == "cpu"
    assert g.compile(branches(), device="auto", streams=2).plan.device.kind == "cpu"
    with pytest.raises(GpuUnavailable):
        g.bind(plan_of(), "auto")


def test_states_go_to_files_and_come_back(tmp_path):
    plan = plan_of()
    program, _ = on_gpu(plan)
    program.step(fed(plan))
    program.save(tmp_path / "run.safetensors")
    again = Program(g.plan(branches(), optimizer=g.optim.Adam(1e-2)), 7)  # on the CPU
    again.load(tmp_path / "run.safetensors")
    assert bits(again) == bits(program)
    program.reset()
    fresh, _ = on_gpu(plan)
    assert bits(program) == bits(fresh)
    name = next(iter(program.parameters))
    program.parameters[name] = np.ones_like(program.parameters[name])
    assert (program.parameters[name] == 1).all()


def test_labels_are_checked_before_they_are_fed():
    plan = plan_of()
    program, device = on_gpu(plan)
    feeds = fed(plan)
    feeds["t"][2] = 5
    with pytest.raises(FeedError, match=r"'t' contains numbers from . to 5.*\[0, 5\)"):
        program.step(feeds)
    assert device.counts["calls"] == 0


def test_numbers_that_are_not_finite_change_no_state():
    plan = plan_of()
    program, _ = on_gpu(plan, check_finite=True)
    program.step(fed(plan))
    name = next(iter(program.parameters))
    program.parameters[name] = np.full_like(program.parameters[name], np.inf)
    before = bits(program)
    with pytest.raises(NonFiniteError, match="computed by"):
        program.step(fed(plan))
    assert bits(program) == before


def test_a_plan_for_a_gpu_does_not_run_on_the_cpu():
    with pytest.raises(OptionError, match="is for h200, a GPU; run it with graphc"):
        Program(plan_of())


@pytest.mark.parametrize(
    ("broken", "whole"),
    [("Sum::combine(total", "Max::combine(total"), ("expf(", "logf("),
     (" * scaling", " + scaling"), ("return a >= b", "return a <= b")],
)  # fmt: skip
def test_a_broken_kernel_shows(broken, whole):
    """The comparison with the CPU program fails for each of these."""
    loss = small_mlp("float32")
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1), device="cuda")
    changed = []

    def edit(text):
        changed.append(broken in text)
        return text.replace(broken, whole)

    device = EmulatedDevice(edit=edit)
    emulated = Program(plan, SEED, backend=GpuBackend(plan, device))
    program = Program(g.plan(loss, optimizer=g.optim.SGD(0.1)), SEED)
    for run in (emulated, program):
        run.step(fed(plan))
    differs = [
        not np.allclose(found, program.states[name], rtol=1e-4, atol=1e-4)
        for name, found in emulated.states.items()
        if found.dtype.kind == "f"
    ]
    assert changed == [True]
    assert any(differs)


@pytest.mark.parametrize(
    "options", [{}, {"recompute": "sublinear"}, {"precision": "bf16", "clip_norm": 1.0}], ids=str
)
def test_groups_change_no_bit(options):
    """Kernels of groups against the members' own, over whole steps."""
    loss = lstm(seq_len=3, batch=2, layers=2, hidden=8, inputs=5, classes=7)
    options = {"optimizer": g.optim.Adam(1e-2), "device": "cuda", **options}
    grouped, apart = (g.plan(loss, fuse=fuse, **options) for fuse in (True, False))
    assert len(grouped.graph.nodes) < len(apart.graph.nodes)
    found, expected = trained_each([grouped, apart])
    assert found == expected
