"""Compiled steps for a GPU that is not there: inductor's code for sm_90, against planned peaks.

Inductor generates Triton kernels and calls of them if torch reports a GPU. Tensors have no data.
The calls are read line by line, and their allocations counted: an oracle that shares nothing with
the planned peak, which is that of buffers before code is generated.
"""

import contextlib
import importlib.util
import re
import textwrap
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

from pytorch.test_compiled import Block, Gated, Loss  # noqa: E402
from torch._inductor.graph import GraphLowering  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

import graphc  # noqa: E402
from graphc.torch.budget.trace import inductor  # noqa: E402
from graphc.torch.budget.trace.measure import measured_peak  # noqa: E402

WIDTH, ROWS = 128, 2048
H100 = {
    "name": "NVIDIA H100",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "total_memory": 80 << 30,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "warp_size": 32,
    "L2_cache_size": 50 << 20,
    "shared_memory_per_block": 48 << 10,
    "shared_memory_per_block_optin": 227 << 10,
    "gcnArchName": "",
}


class Driver:
    """The methods of a GPU driver that Triton calls before it compiles."""

    def __getattr__(self, name):
        if name in ("binary_ext", "utils", "launcher_cls"):
            raise AttributeError(name)
        return lambda *_: 0

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self):
        return torch.device("cuda", 0)


def pretend(monkeypatch):
    """A GPU that torch reports, until code would be loaded."""
    for name, value in {
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "_get_device_properties": SimpleNamespace(**H100),
        "get_device_capability": (9, 0),
        "get_device_name": H100["name"],
        "get_rng_state": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": None,
        "synchronize": None,
        "set_device": None,
        "_lazy_init": None,
        "_exchange_device": 0,
        "_maybe_exchange_device": 0,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, found=value, **__: found, raising=False)
    monkeypatch.setattr("torch._inductor.scheduler.has_triton", lambda: True)
    monkeypatch.setattr(triton.runtime.driver, "_active", Driver())


def code_of(graph, outputs, monkeypatch):
    """Return inductor's calls of kernels for a graph on a GPU, and the peak that is planned."""
    codes, seen = [], inductor.Seen()

    def generated(lowered):
        codes.append(lowered.codegen()[0].value)
        raise StopIteration

    monkeypatch.setattr(GraphLowering, "compile_to_module", generated)
    monkeypatch.setattr(inductor, "_StoppingOrder", inductor._PlannedOrder)
    mode = FakeTensorMode()

    def on_gpu(value):
        if not isinstance(value, torch.Tensor):
            return value
        with mode:
            return torch.empty_strided(
                value.shape, value.stride(), dtype=value.dtype, device="cuda"
            )

    for node in graph.graph.nodes:
        if "val" in node.meta:
            node.meta["val"] = torch.utils._pytree.tree_map(on_gpu, node.meta["val"])
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": torch.device("cuda", 0)}
    with inductor.INDUCTOR.config.patch({**inductor.SETTINGS, "fx_graph_cache": False}):
        inductor._lower(graph, outputs, lambda called: [0] * len(called), seen)
    return codes[0], seen.peaks[outputs is None]


def run_of(code, graph):
    """Return a function that runs inductor's calls on the CPU, without what the kernels compute."""
    body = code[code.index("def call(") : code.index("\nrunner = ")]
    nothing = SimpleNamespace(run=lambda *_, **__: None)
    names = {
        "aten": torch.ops.aten,
        "empty_strided_cuda": torch._C._dynamo.guards._empty_strided_cpu,
        "reinterpret_tensor": torch._C._dynamo.guards._reinterpret_tensor,
        "extern_kernels": SimpleNamespace(mm=call_nothing, addmm=call_nothing, bmm=call_nothing),
        "get_raw_stream": lambda _: 0,
        "copy_if_misaligned": lambda tensor: tensor,
        "assert_size_stride": lambda *_: None,
        "assert_size_stride_grouped": lambda *_: None,
        **dict.fromkeys(re.findall(r"triton_\w+", body), nothing),
    }
    names["torch"] = SimpleNamespace(
        **{name: getattr(torch, name) for name in ("float32", "int64", "int32", "bool", "ops")},
        cuda=SimpleNamespace(
            _DeviceGuard=lambda _: contextlib.nullcontext(), set_device=lambda _: None
        ),
    )
    exec(textwrap.dedent(body), names)
    inputs = graph.graph.find_nodes(op="placeholder")

    def made(node):
        value = node.meta["val"]
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)

    def is_kept(node):
        return node.name.startswith(("primals", "tangents"))

    kept = {node: made(node) for node in inputs if is_kept(node)}
    return lambda: names["call"](None, [kept[n] if n in kept else made(n) for n in inputs])


def call_nothing(*_, out, **__):
    """A product into a tensor that exists."""


@pytest.mark.parametrize("part", [0.0, 1.0])
@pytest.mark.parametrize("block", [Block, Gated])
def test_calls_of_triton_kernels_allocate_what_is_planned(block, part, monkeypatch):
    module, x = Loss(block(), block()), torch.empty(ROWS, WIDTH)
    plan = graphc.torch.plan(module, (x,), max_extra_time=part, compile=True).plans[-1]
    pretend(monkeypatch)
    for graph, outputs in ((plan.forward, range(1)), (plan.backward, None)):
        code, peak = code_of(graph, outputs, monkeypatch)
        assert "triton_" in code
        assert abs(measured_peak(run_of(code, graph)) - peak) <= 4096


def test_kernels_compile_for_sm_90(monkeypatch, tmp_path):
    """By Triton and its own assembler, each with the first of its configurations."""
    module, x = Loss(Block()), torch.empty(ROWS, WIDTH)
    plan = graphc.torch.plan(module, (x,), max_extra_time=0.0, compile=True).plans[-1]
    pretend(monkeypatch)
    code, _ = code_of(plan.backward, None, monkeypatch)
    sources = re.findall(r"async_compile\.triton\('(\w+)', '''(.*?)'''", code, re.DOTALL)
    assert len(sources) > 2
    for name, source in sources:
        path = tmp_path / f"{name}.py"
        path.write_text(source.replace("triton_helpers.set_driver_to_gpu()", ""))
        spec = importlib.util.spec_from_file_location(name, path)
        found = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found)
        kernel = getattr(found, name)
        constants = {**kernel.triton_meta["constants"], **kernel.configs[0].kwargs}
        made = triton.compile(
            ASTSource(kernel.fn, kernel.triton_meta["signature"], constants),
            target=GPUTarget("cuda", 90, 32),
        )
        assert ".target sm_90" in made.asm["ptx"]
        assert made.asm["cubin"]
