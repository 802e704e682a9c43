"""The layer above CuPy, on a stand-in with CuPy's signatures."""

import functools
import gc
import json
import random
import socket
import sys

import pytest
from plans.with_copies import copied, random_trips
from runtime.emulated_gpu.fake_cupy import FREE, FakeCupy
from runtime.emulated_gpu.networks import SEED, bits, branches, fed
from runtime.forked import in_child
from runtime.garbage import own_garbage

import graphc as g
from graphc import Program
from graphc.errors import ArenaError, OptionError, RanksError
from graphc.runtime import bind as bind_module
from graphc.runtime.gpu import cuda
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.bind import bind, kernels_of
from graphc.runtime.gpu.cublaslt import CublasError
from graphc.runtime.gpu.device import find_gpu, profile_of
from graphc.runtime.gpu.timing import launch_times, step_seconds
from graphc.runtime.kernel_files import cache_folder


@functools.cache
def known_kernels():
    """Return the kernels of `branches`, in every way in which these tests run it."""
    plans = [
        g.plan(branches(dtype), optimizer=g.optim.Adam(1e-2), device="cuda", streams=streams)
        for streams in (1, 3)
        for dtype in ("float64", "float32")
    ]
    plans.append(g.plan(outputs={"y": branches("float32")}, device="cuda"))
    works = [bind(plan, 512, together=flag) for plan in plans for flag in (True, False)]
    return kernels_of(call for each in works for work in each for call in work.calls)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A folder in which machine code is kept, so that NVRTC compiles each kernel once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cupy(monkeypatch, cache):
    """A machine with one GPU that knows the kernels of `branches`."""
    found = FakeCupy(known_kernels())
    monkeypatch.setitem(sys.modules, "cupy", found)
    monkeypatch.setattr(cuda, "load_cublaslt", lambda: found.cublaslt)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    return found


def compiled(dtype="float64", **options):
    return g.compile(branches(dtype), optimizer=g.optim.Adam(1e-2), seed=SEED, **options)


@pytest.mark.parametrize("options", [{}, {"streams": 3}, {"cuda_graph": False}, {"poison": True}])
def test_compile_trains_on_the_gpu(cupy, options):
    program, expected = compiled(device="cuda", **options), compiled()
    for step in range(3):
        feeds = fed(program.plan, step)
        found = program.step(feeds)["loss"]
        assert found == pytest.approx(expected.step(feeds)["loss"], rel=1e-9)
    assert cupy.emulated.allocations == [program.arena_bytes] == [program.plan.arena_bytes]
    assert program.plan.device.kind == "cuda"
    replays = 0 if "cuda_graph" in options or "poison" in options else 2
    assert cupy.emulated.counts["replays"] == replays


def test_values_are_copied_to_pinned_memory_and_back(cupy):
    """No copy touches the kernels of other nodes, so those of `branches` suffice."""
    plain = g.plan(branches("float64"), optimizer=g.optim.Adam(1e-2), device="cuda")
    plan = copied(plain, random_trips(plain, random.Random(3), 8))
    losses = []
    for each in (plain, plan):
        program = g.bind(each, seed=SEED)
        losses.append([program.step(fed(plain, step))["loss"].tobytes() for step in range(3)])
    assert losses[0] == losses[1]
    assert program.report.calls["copies"] > 8
    assert program.host_bytes == plan.host_bytes


def test_more_pinned_memory_than_there_is(cupy):
    with pytest.raises(ArenaError, match="of pinned host memory; free memory"):
        cuda.CudaDevice(find_gpu(0)).pinned(FREE + 1)


class Connection:
    """As much of a communicator as steps without exchanges ask of it."""

    def __init__(self):
        self.waits, self.error = 0, None

    def require(self):
        if self.error:
            raise self.error

    def wait(self, is_done):
        self.require()
        assert is_done()
        self.waits += 1


def test_steps_of_a_rank_are_waited_for_by_its_connection(cupy):
    connection, known = Connection(), []

    def connect(identity, active):
        with active():
            known.append(identity)
        return connection

    device = cuda.CudaDevice(find_gpu(0), connect=connect)
    assert known == [f"{socket.gethostname()} 0000:00:00.0 {bytes(range(1, 17)).hex()}"]
    plan = g.plan(branches("float64"), optimizer=g.optim.Adam(1e-2), device="cuda")
    program, expected = Program(plan, SEED, backend=GpuBackend(plan, device)), compiled()
    for step in range(3):
        waits = connection.waits
        found = program.step(fed(plan, step))["loss"]
        assert found == pytest.approx(expected.step(fed(plan, step))["loss"], rel=1e-9)
        assert connection.waits > waits
    connection.error = RanksError("given up")
    replays = cupy.emulated.counts["replays"]
    with pytest.raises(RanksError, match="given up"):
        program.step(fed(plan, 3))
    assert cupy.emulated.counts["replays"] == replays


def test_products_with_epilogues_are_described_once(cupy):
    program, expected = compiled("float32", device="cuda", cuda_graph=False), compiled("float32")
    live = []
    for step in range(3):
        feeds = fed(program.plan, step)
        found = program.step(feeds)["loss"]
        assert found == pytest.approx(expected.step(feeds)["loss"], rel=1e-5)
        live.append(cupy.cublaslt.library.live_descriptors())
    layers = [node for node in program.plan.graph.nodes if node.op.name == "linear"]
    assert len(layers) == 9
    assert live == [live[0]] * 3
    assert live[0] >= 5 * len(layers)


def test_auto_takes_the_gpu(cupy):
    assert compiled(device="auto").plan.device.name == "Some GPU"


def test_code_is_kept(cupy, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = compiled(device="cuda")
    files = {path: path.stat().st_mtime_ns for path in cache_folder().iterdir()}
    assert files
    other = compiled(device="cuda")
    assert {path: path.stat().st_mtime_ns for path in cache_folder().iterdir()} == files
    assert bits(one) == bits(other)


def test_an_arena_that_does_not_fit_says_what_would(cupy):
    device = cuda.CudaDevice(find_gpu(0))
    with pytest.raises(ArenaError, match=r"plan with budget='2560MiB'") as caught:
        device.allocate(FREE - cuda.LIBRARY_BYTES + 1)
    assert "cuda:0 (Some GPU) has 3.00 GiB of 4.00 GiB free" in str(caught.value)
    assert device.allocate(1000) % 256 == 0


def test_a_device_that_nobody_knows_is_planned_by_what_the_driver_says(cupy):
    profile = profile_of(find_gpu(0))
    assert (profile.name, profile.kind, profile.architecture) == ("Some GPU", "cuda", 90)
    assert profile.flops_per_second == 2 * 1e9 * 100 * 128
    assert profile.bytes_per_second == 2 * 2e9 * 64


def test_plans_for_cuda_are_for_the_gpu_that_is_there(cupy, monkeypatch):
    plan = functools.partial(g.plan, branches("float32"), optimizer=g.optim.SGD(0.1))
    assert plan(device="cuda").device.name == "Some GPU"
    assert plan(device="cuda", roofline="a100").device.name == "a100"
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert plan(device="cuda").device.name == "h200"


def test_steps_and_launches_are_timed(cupy):
    program = compiled("float32", device="cuda")
    for step in range(3):
        program.step(fed(program.plan, step))
    before = bits(program)
    launches = launch_times(program)
    works = program.backend.works
    assert [each.op for each in launches] == [w.nodes[0].op.name for w in works for _ in w.calls]
    assert all(0 < each.seconds < 10 for each in launches)
    assert 0 < step_seconds(program, 3) < 100
    assert bits(program) != before  # timed steps are steps: they train on
    with pytest.raises(OptionError, match="requires a GPU"):
        launch_times(compiled("float32"))


def test_there_is_no_second_gpu(cupy):
    with pytest.raises(g.GraphcError, match="no cuda:1; choose one of cuda:0"):
        compiled(device="cuda:1")


def test_a_forked_child_gives_nothing_back(cupy):
    """The handle is its parent's, and CUDA does not work there."""

    def child():
        nonlocal device
        del device
        gc.collect()
        return closed

    closed = []
    with own_garbage():
        device = compiled(device="cuda")._backend._accelerator
        device.products.close = lambda: closed.append("closed")
        assert in_child(child) == []
        del device
        gc.collect()
    assert closed == ["closed"]


def test_descriptors_are_released_with_the_program(cupy):
    before = cupy.cublaslt.library.live_descriptors()
    closed = []
    with own_garbage():
        program = compiled("float32", device="cuda")
        handle = program._backend._accelerator.products
        close = handle.close
        handle.close = lambda: (closed.append("closed"), close())
        assert cupy.cublaslt.library.live_descriptors() > before
        del program, handle
        gc.collect()
    assert closed == ["closed"]
    assert cupy.cublaslt.library.live_descriptors() == before


def test_a_file_keeps_the_algorithms(cupy, tmp_path):
    path = tmp_path / "algorithms.json"
    one = compiled("float32", device="cuda", tuning=path)
    kept = json.loads(path.read_bytes())
    assert kept["cublaslt"] == "13.14.15"
    assert len(kept["algorithms"]) >= 8
    asked = cupy.cublaslt.library.asked_choices()
    other = compiled("float32", device="cuda", tuning=path)
    assert cupy.cublaslt.library.asked_choices() == asked > 0
    assert json.loads(path.read_bytes()) == kept
    assert bits(one) == bits(other)
    path.write_text(json.dumps({**kept, "cublaslt": "12.0.0"}))
    with pytest.raises(
        CublasError, match=r"by cuBLASLt 12.0.0, but version 13.14.15 .* delete the rec"
    ):
        compiled("float32", device="cuda", tuning=path)
    path.write_text('{"engines": {}}')
    with pytest.raises(CublasError, match="not a record of algorithms; pass another file"):
        compiled("float32", device="cuda", tuning=path)


def test_a_gpu_that_is_too_old_says_so(cupy, monkeypatch):
    def properties(major):
        return lambda n: {"name": b"Old GPU", "major": major, "minor": 0, "multiProcessorCount": 9}

    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", properties(7))
    with pytest.raises(g.GraphcError, match="Old GPU is sm_70; CUDA 13 requires sm_75"):
        compiled(device="cuda")
    monkeypatch.setattr(bind_module, "AMPERE", 100)
    monkeypatch.setattr(cupy.cuda.runtime, "getDeviceProperties", properties(9))
    with pytest.raises(
        g.GraphcError, match="sm_90, which does not support bfloat16; choose precision='fp16'"
    ):
        compiled("float32", device="cuda", precision="bf16")


def test_a_gpu_without_8_bit_products_says_so(cupy, monkeypatch):
    """In plans for that GPU, and where a plan for another one is bound."""
    x = g.relu(g.linear(g.input("x", (16, 16)), 16, name="first"))
    loss = g.mean(g.linear(x, 16, name="last"))
    plan = g.plan(loss, optimizer=g.optim.SGD(), device="h200", precision="fp8")
    monkeypatch.setattr(
        cupy.cuda.runtime,
        "getDeviceProperties",
        lambda n: {"name": b"Old GPU", "major": 8, "minor": 0, "multiProcessorCount": 9},
    )
    for make in (
        lambda: g.bind(plan, device="cuda"),
        lambda: g.compile(loss, optimizer=g.optim.SGD(), device="cuda", precision="fp8"),
    ):
        with pytest.raises(g.GraphcError, match="sm_80, whose tensor cores do not multiply 8-bit"):
            make()


def test_an_evaluation_shares_states_on_the_gpu(cupy):
    owner = compiled("float32", device="cuda")
    outputs = {"y": branches("float32")}
    shared = g.compile(outputs=outputs, device="cuda", states=owner)
    copied = g.compile(outputs=outputs, device="cuda")
    for step in range(3):
        feeds = fed(owner.plan, step)
        owner.step(feeds)
        copied.states.update({name: owner.states[name] for name in copied.states})
        given = {name: feeds[name] for name in shared.inputs}
        assert shared.step(given)["y"].tobytes() == copied.step(given)["y"].tobytes()
    assert shared.arena_bytes < copied.arena_bytes
    with pytest.raises(OptionError, match=r"states belong to a program on .*copy them"):
        g.compile(outputs=outputs, states=owner)
