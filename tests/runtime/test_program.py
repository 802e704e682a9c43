import gc
import subprocess
import sys
import tracemalloc

import ml_dtypes
import numpy as np
import pytest
from models.test_zoo import quick_and_slow

import graphc as g
from graphc.devices.device import KERNELS
from graphc.errors import FeedError, NonFiniteError, OptionError
from graphc.models import gpt2, lstm, mlp, mobilenet_v2
from graphc.runtime.cpu.bind import numpy_settings
from graphc.runtime.initial import fill_initial

RNG = np.random.default_rng(0)
FEEDS = {
    "x": RNG.standard_normal((8, 16)).astype(np.float32),
    "labels": RNG.integers(0, 10, 8).astype(np.int32),
}


def small(**options):
    options = {"optimizer": g.optim.Adam(0.01), **options}
    return g.compile(mlp(layers=3, hidden=12, inputs=16, batch=8), **options)


def test_the_bytes_printed_are_the_bytes_used():
    program = small()
    assert program.arena_bytes == program.plan.arena_bytes
    assert f"{program.plan.arena_bytes:,} bytes" in program.plan.text()
    arena = program._backend._arena.bytes
    for value, array in program._backend._arrays.items():
        assert np.shares_memory(array, arena), value


def test_a_program_shows_its_inputs_outputs_and_steps():
    program = small()
    assert {name: str(type) for name, type in program.inputs.items()} == {
        "x": "f32[8,16]", "labels": "i32[8]", "learning_rate": "f32[]",
    }  # fmt: skip
    assert {name: str(type) for name, type in program.outputs.items()} == {"loss": "f32[]"}
    program.step(FEEDS)
    with pytest.raises(FeedError):
        program.step()
    inputs = "inputs x f32[8,16], labels i32[8], learning_rate f32[]; outputs loss f32[]"
    assert repr(program).startswith("<Program on cpu: arena ")
    assert repr(program).endswith(f"; {inputs}; 1 step done>")
    program.reset()
    assert repr(program).endswith("; 0 steps done>")


def test_the_repr_of_a_program_lists_some_of_many_inputs():
    inputs = [g.input(f"x{i}", (2,)) for i in range(40)]
    program = g.compile(outputs={"y": g.concat(inputs, 0)})
    assert "x5 f32[2] and 34 more; outputs y f32[80]" in repr(program)


STEPS = """
import gc
import tracemalloc
import numpy as np
import graphc as g
from graphc.models import mlp

batch, wide = 64, 128
feeds = {"x": np.ones((batch, wide), np.float32), "labels": np.zeros(batch, np.int32)}
for kernels in ("native", "numpy"):
    for optimizer in (g.optim.SGD(), g.optim.Momentum(), g.optim.AdamW()):
        loss = mlp(layers=4, hidden=wide, inputs=wide, classes=wide, batch=batch)
        program = g.compile(loss, optimizer=optimizer, recompute="mirror", kernels=kernels)
        program.step(feeds)
        gc.collect()
        tracemalloc.start()
        for _ in range(2):
            program.step(feeds)  # what Python keeps for its next objects is counted before
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(10):
            program.step(feeds)
        print(kernels, optimizer, tracemalloc.get_traced_memory()[1] - before, sep=": ")
        tracemalloc.stop()
"""


def test_nothing_is_allocated_in_a_step():
    """Less than 8 KiB at any moment of ten steps: argument tuples and views, never an array.

    In a process of its own: what other threads of this one allocate would be counted.
    """
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peaks = [line.split(": ") for line in done.stdout.splitlines()]
    assert len(peaks) == 6
    for kernels, optimizer, peak in peaks:
        assert int(peak) < 8 * 2**10, (kernels, optimizer)


def every_op_network():
    """Most kernels at sizes at which a temporary would show."""
    rows, columns = 64, 300
    x, i = g.input("x", (rows, columns)), g.input("i", (rows,), "int32")
    values = [op(x) for op in (g.tanh, g.sigmoid, g.relu, g.gelu, g.silu, g.softmax, g.log_softmax)]
    values += [g.leaky_relu(x, 0.1), g.gelu(x, "tanh"), x**3.0, g.exp(x), g.sqrt(x * x + 1.0)]
    values += [g.where(g.less(x, 0.5), x, 2.0 * x), g.maximum(x, 0.5), g.div(x, x * x + 1.0)]
    values += [g.broadcast_to(g.max(x, 1, True), x.shape), x - g.mean(x, 0, True)]
    values += [g.concat(g.split(x, 3, 1)[::-1], 1), g.concat([x[1:], x[:1]])]
    values += [g.min(x, 0), g.top_k(x, 5, 0)[0], g.cumsum(x, 0), g.cumsum(x, 1, True, True)]
    values += [g.masked_softmax(x, g.less(x, 0.5)), g.gather_elements(x, g.sort(x)[1], 1)]
    values += [g.scatter_elements(x, g.argmin(x, 0, True), x[:1], 0, name)
               for name in ("none", "mul", "max")]  # fmt: skip
    values += [g.gather(x, i), g.transpose(g.reshape(g.transpose(x), (columns, rows)))]
    total = g.sum(g.one_hot(i, 8))
    for value in values:
        total = total + g.mean(value * value)
    weights = g.linear(x, 8, name="head")
    return total + g.softmax_cross_entropy(weights, g.cast(g.one_hot(i, 8), "int32")[:, 0])


@pytest.mark.parametrize("kernels", KERNELS)
def test_no_kernel_allocates(kernels):
    loss = every_op_network()
    x = next(v for v in g.plan(loss).graph.inputs if v.name == "x")
    (dx,) = g.gradient(loss, [x])
    options = {"optimizer": g.optim.SGD(), "kernels": kernels}
    program = g.compile(loss, outputs={"norm": g.mean(dx * dx)}, **options)
    feeds = {
        "x": RNG.uniform(0.1, 1, (64, 300)).astype(np.float32),
        "i": np.arange(64, dtype=np.int32) % 8,
    }
    assert_no_call_allocates(program, feeds)


def maps():
    """Maps brought to other places and extents, at sizes at which a temporary would show."""
    x, t = g.input("x", (4, 8, 40, 36)), g.input("t", (4,), "int32")
    h = g.conv2d(x, 8, 3, padding=((0, 1), (2, 0)))
    h = g.pad(h, ((0, 0), (0, 0), (3, 2), (1, 4)), "reflect")
    h = g.resize(h, (4, 8, 29, 47), form="cubic", antialias=True)
    h = g.grid_sample(h, g.tanh(g.parameter("grid", (4, 30, 30, 2))), padding="reflection")
    h = g.max_pool2d(h, 3, 1, ((0, 1), (1, 0)), dilation=2)
    h = g.average_pool2d(h, 3, 2, 1, ceil_mode=True, count_include_pad=False)
    h = g.col2im(g.im2col(h, 2), h.shape[2:], 2)
    return g.softmax_cross_entropy(g.mean(h, (2, 3)), t)


NETWORKS = {
    "maps": maps,
    "gpt2": lambda: gpt2(layers=1, width=64, heads=2, seq_len=64, batch=4, vocab=64),
    "gpt2 composed": lambda: gpt2(
        layers=1, width=64, heads=2, seq_len=64, batch=4, vocab=64, attention="composed"
    ),
    "mobilenet_v2": lambda: mobilenet_v2(batch=2, image=32, classes=5),
    "lstm": lambda: lstm(seq_len=3, batch=16, layers=1, hidden=64, inputs=32, classes=20),
}


@pytest.mark.parametrize(
    ("precision", "kernels"),
    [
        ("fp32", "native"),
        ("fp16", "numpy"),
        ("fp8", "native"),
        pytest.param("fp16", "native", marks=pytest.mark.slow),
        pytest.param("fp32", "numpy", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", quick_and_slow(NETWORKS, ["mobilenet_v2", "gpt2 composed"]))
def test_no_kernel_of_a_network_allocates(name, precision, kernels):
    """Attention, embeddings, dropout, convolutions, clipping, schedules, guarded updates."""
    schedule = g.optim.Schedule(0.1, steps=9, warmup=2)
    program = g.compile(
        NETWORKS[name](), optimizer=g.optim.Adam(schedule), clip_norm=1.0, accumulate=2,
        precision=precision, kernels=kernels,
    )  # fmt: skip
    feeds = {
        x.name: RNG.standard_normal(x.shape).astype(np.float32)
        if x.type.dtype.kind == "float"
        else RNG.integers(0, 5, x.shape).astype(np.int32)
        for x in program.graph.inputs
    }
    assert_no_call_allocates(program, feeds)


def assert_no_call_allocates(program, feeds):
    program.step(feeds)
    for source, given in program._feeds.checked(feeds).items():
        np.copyto(program._backend._arrays[source], given)
    gc.collect(1)  # none is due among the calls
    worst = {}
    calls = program._backend._reading + program._backend._updating
    for number, call in enumerate(calls):
        # Other threads may allocate meanwhile; what the call allocates, it does twice.
        worst[number, getattr(call, "func", call)] = min(peak_of(call), peak_of(call))
    assert {name: peak for name, peak in worst.items() if peak >= 16 * 2**10} == {}


def peak_of(call):
    tracemalloc.start()
    try:
        with numpy_settings():
            call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("feeds", "message"),
    [
        ({}, "'x' is missing.*f32.8,16."),
        ({"x": FEEDS["x"]}, "'labels' is missing"),
        ({**FEEDS, "y": 1}, "no input 'y'.*'x', 'labels'"),
        ({**FEEDS, "x": FEEDS["x"].astype("f8") + 1e-9}, "dtype float64.*astype.'float32'"),
        ({**FEEDS, "x": FEEDS["x"][:4]}, r"got the shape \[4, 16\]"),
        ({**FEEDS, "x": FEEDS["x"].tolist()}, "got list"),
        ({**FEEDS, "labels": FEEDS["labels"] + 90}, r"labels.*from 90 to 98.*\[0, 10\)"),
        ({**FEEDS, "learning_rate": "fast"}, "got str"),
    ],
)
def test_feeds_that_do_not_fit(feeds, message):
    program = small()
    before = {name: array.copy() for name, array in program.states.items()}
    with pytest.raises(FeedError, match=message):
        program.step(feeds)
    for name, array in program.states.items():
        np.testing.assert_array_equal(array, before[name])
    program.step(FEEDS)


def test_nan_in_feeds_is_allowed_and_reported_on_request():
    feeds = {**FEEDS, "x": FEEDS["x"].copy()}
    feeds["x"][2, 3] = np.nan
    assert np.isnan(small().step(feeds)["loss"])
    checking = small(check_finite=True)
    with pytest.raises(NonFiniteError, match=r"input 'x' contains nan at \[2, 3\]; 1 element"):
        checking.step(feeds)


@pytest.mark.parametrize(("kernels", "op"), [("numpy", "log"), ("native", "mul\\+log")])
def test_check_finite_names_the_node_and_keeps_the_states(kernels, op):
    x = g.input("x", (4,))
    with g.scope("bad"):
        loss = g.sum(g.log(x * g.parameter("w", (4,), initial=g.Initial("constant", 1.0))))
    options = {"optimizer": g.optim.SGD(0.1), "kernels": kernels}
    program = g.compile(loss, check_finite=True, **options)
    program.step(x=np.ones(4, np.float32))
    before = program.parameters["bad/w"]
    with pytest.raises(NonFiniteError, match=f"computed by bad/{op}"):
        program.step(x=np.zeros(4, np.float32))
    np.testing.assert_array_equal(program.parameters["bad/w"], before)


def test_outputs_and_parameters_are_copies():
    program = small()
    first = program.step(FEEDS)["loss"]
    kept = float(first)
    weight = program.parameters["layer0/weight"]
    weight += 1
    program.step(FEEDS)
    assert float(first) == kept
    assert not np.array_equal(weight, program.parameters["layer0/weight"])


def test_parameters_are_a_checked_mapping():
    program = small()
    assert len(program.parameters) == 8
    assert set(program.parameters) < set(program.states)
    assert "adam/m/layer0/weight" in program.states
    program.parameters["layer0/bias"] = np.ones(12, np.float32)
    assert program.parameters["layer0/bias"].sum() == 12
    for given in (np.ones(11, np.float32), np.ones(12), 3.0):
        with pytest.raises(OptionError, match="layer0/bias"):
            program.parameters["layer0/bias"] = given
    with pytest.raises(OptionError, match="there is no 'layer9"):
        program.parameters["layer9/bias"]
    with pytest.raises(OptionError, match="cannot be removed"):
        del program.parameters["layer0/bias"]


def test_the_learning_rate_is_an_input_that_may_change():
    frozen, plain = small(), small()
    before = frozen.parameters["layer0/weight"]
    frozen.step(FEEDS, learning_rate=0.0)
    np.testing.assert_array_equal(frozen.parameters["layer0/weight"], before)
    plain.step(FEEDS)
    assert not np.array_equal(plain.parameters["layer0/weight"], before)


def test_inference_shares_parameters_by_name():
    x = g.input("x", (8, 16))
    logits = g.linear(x, 10)
    loss = g.softmax_cross_entropy(logits, g.input("labels", (8,), "int32"))
    training = g.compile(loss, optimizer=g.optim.SGD(0.5))
    training.step(FEEDS)
    inference = g.compile(outputs=[logits])
    inference.parameters.update(training.parameters)
    wanted = FEEDS["x"] @ training.parameters["weight"].T + training.parameters["bias"]
    np.testing.assert_allclose(
        inference.step(x=FEEDS["x"])["output0"], wanted, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"recompute": "some"}, "unknown recompute 'some'; choose one of: none, mirror"),
        ({"allocate": "best"}, "none, inplace, sharing, packed"),
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"alignment": 100}, "power of two"),
        ({"seed": -1}, "seed"),
        ({"seed": 0.5}, "seed"),
    ],
)
def test_unknown_options_list_the_known_ones(options, message):
    with pytest.raises(OptionError, match=message):
        small(**options)


def test_an_unknown_device_is_told_with_the_line_that_names_it():
    with pytest.raises(OptionError) as raised:
        small(device="tpu")
    assert str(raised.value).startswith(f"{__file__}:")


def test_compile_refuses_missing_arguments():
    with pytest.raises(OptionError, match="loss or outputs"):
        g.compile()
    with pytest.raises(OptionError, match="must be a graphc value"):
        g.compile(3.0)


def test_equal_seeds_give_equal_runs_and_other_seeds_do_not():
    runs = []
    for seed in (0, 0, 1):
        program = small(seed=seed)
        runs.append([float(program.step(FEEDS)["loss"]) for _ in range(3)])
    assert runs[0] == runs[1] != runs[2]


def test_initial_values_are_the_same_everywhere():
    """Known answers: these bits must never change, or old seeds mean other networks."""
    for kind, wanted in (
        ("uniform", UNIFORM),
        ("normal", NORMAL),
    ):
        state = g.parameter("layer0/weight", (2, 2), initial=g.Initial(kind, 0.5))
        found = np.empty((2, 2), np.float32)
        fill_initial(state, 7, found)
        assert [x.hex() for x in found.ravel().tolist()] == wanted


UNIFORM = [
    "-0x1.9af41a0000000p-2", "0x1.f0dd920000000p-2",
    "-0x1.75dec40000000p-2", "0x1.40b92c0000000p-2",
]  # fmt: skip
NORMAL = [
    "0x1.34ebb60000000p-3", "0x1.1f78360000000p-1",
    "0x1.5decb40000000p-3", "-0x1.56b24c0000000p+0",
]  # fmt: skip


def test_initial_values_have_the_stated_spread():
    for kind, deviation in (("uniform", 0.5 / 3**0.5), ("normal", 0.5)):
        state = g.parameter("w", (1000, 601), initial=g.Initial(kind, 0.5))
        found = np.empty((1000, 601), np.float32)
        fill_initial(state, 0, found)
        assert abs(found.mean()) < 2e-3
        assert found.std() == pytest.approx(deviation, rel=5e-3)
        other = np.empty_like(found)
        fill_initial(g.parameter("v", (1000, 601), initial=g.Initial(kind, 0.5)), 0, other)
        assert abs(np.corrcoef(found.ravel(), other.ravel())[0, 1]) < 5e-3


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_networks_run_through_float32_kernels(dtype):
    numpy = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}[dtype]
    x = g.input("x", (4, 8), dtype)
    y = g.softmax(g.tanh(g.linear(x, 6)))
    program = g.compile(outputs={"y": y, "max": g.max(y, 1)}, poison=True)
    given = RNG.standard_normal((4, 8)).astype(numpy)
    found = program.step(x=given)
    weight = program.parameters["weight"].astype(np.float32)
    wide = (given.astype(np.float32) @ weight.T).astype(numpy).astype(np.float32)
    powers = np.exp(np.tanh(wide).astype(numpy).astype(np.float32))
    wanted = powers / powers.sum(1, keepdims=True)
    assert found["y"].dtype == numpy
    np.testing.assert_allclose(found["y"].astype(np.float32), wanted, rtol=2**-7)
    np.testing.assert_array_equal(found["max"], found["y"].astype(np.float32).max(1).astype(numpy))


def test_poison_shows_a_read_of_freed_bytes(monkeypatch):
    """Without the checker, a plan that frees too early gives NaN instead of a plausible number."""
    from dataclasses import replace

    from graphc import Program
    from graphc.plans.memory_plan import Lifetime

    x = g.input("x", (4, 4))
    plan = g.plan(outputs={"y": g.tanh(x) + g.exp(g.tanh(x) * 2.0)}, allocate="none")
    tanh = next(v for v in plan.graph.values if v.node and v.node.op.name == "tanh")
    buffers = list(plan.buffers)
    index = plan.placements[tanh].buffer
    buffers[index] = replace(buffers[index], lifetime=Lifetime(0, 1))
    short = replace(plan, buffers=tuple(buffers))
    given = np.ones((4, 4), np.float32)
    assert np.isnan(Program(short, poison=True).step(x=given)["y"]).all()
    assert np.isfinite(Program(plan, poison=True).step(x=given)["y"]).all()
