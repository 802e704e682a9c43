"""A roofline model of the time of a step on a GPU, call by call. It needs no GPU.

Each call takes the maximum of its compute time and its memory time, at fractions of the peak rates
of the device. To this the cost of a launch inside a CUDA graph is added. The model omits
communication between ranks, caches, and blocks that do not fill the device. Fractions named
"measured" are of an H100 or H200 on 2026-11-27 (benchmarks/results/gpu_day_*.json); the others are
assumed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from graphc.codegen.attention import tensor_cores
from graphc.codegen.cudnn_request import ConvolutionRequest, Request
from graphc.codegen.products.gemm import COMPUTE_32F_FAST_TF32
from graphc.codegen.workspace import gpu_workspace
from graphc.devices.device import Device
from graphc.ir.graph import Node
from graphc.ir.types import ROW_BYTES, DType
from graphc.ops.tiled_attention import TiledAttention
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.gpu.bind import (
    BoundCopy,
    BoundExchange,
    BoundGemm,
    BoundLaunch,
    BoundPlan,
    Work,
    bind,
    workspace_starts,
)
from graphc.runtime.gpu.cudnn import Cudnn, Plan

MEMORY_PART = 0.85
"""The fraction of peak bandwidth that kernels with one pass over their operands reach."""

PRODUCT_PART = 0.65
"""The fraction of peak arithmetic that large products reach; 0.70 was measured in the layers of
GPT-2."""

ATTENTION_PART, ATTENTION_GRADIENT_PART, OWN_ATTENTION_PART = 0.32, 0.22, 0.17
"""The fractions of peak arithmetic of cuDNN's attention, of its deterministic gradient, and of
graphc's own attention on tensor cores, which is limited by instructions other than products. All
are measured, the last one before its loops got 2 to 3 times shorter."""

ODD_EXTENT_PART, EXTENT_MULTIPLE = 0.1, 8
"""`ODD_EXTENT_PART` is the fraction of peak arithmetic of 16-bit products whose m or k is not a
multiple of `EXTENT_MULTIPLE`. cuBLASLt computes them without Hopper's matrix instructions, whatever
their strides. Measured with a vocabulary of 50,257."""

READS: Mapping[str, float] = {
    "batch_norm": 1.55, "cross_entropy": 3.0, "cross_entropy_gradient": 2.0,
    "cross_entropy_with_slopes": 2.35, "norm_gradients": 1.45, "norm_parameter_gradients": 3.0,
}  # fmt: skip
"""Op → the number of passes over its operands that explains the measured time of its kernel. Norms
and losses read their operands up to three times, and part of it from a cache. Sums over columns
load 2 bytes at a time."""

OWN_PRODUCTS = 7 / 5
"""The ratio of computed to necessary products in graphc's gradient of attention. It computes two of
the five products of a tile twice, which avoids atomic additions."""

UNALIGNED_PART = 0.2
"""The fraction of peak arithmetic of 16-bit products whose rows are not aligned to 16 bytes."""

PLAIN_PART = 0.35
"""The fraction of peak float32 arithmetic that simple kernels reach, measured with the gradient of
gelu."""

LAUNCH_SECONDS = 2.5e-6
"""The overhead of a call inside a CUDA graph."""

ADDRESS = 0x7F00_0000_0000
"""The address of the arena that the model assumes."""

IN_PARTS = ("concat", "pad_slice")
"""Ops whose kernels are launched several times, each time for a part of the result. The bytes that
all launches together move are those of the op."""

KINDS = ("products", "convolutions", "attention", "other kernels", "launches")


@dataclass(frozen=True, slots=True)
class OpTime:
    """Totals for the nodes of one op: their number, calls, and seconds, which include launches."""

    op: str
    nodes: int
    calls: int
    seconds: float


@dataclass(frozen=True)
class StepModel:
    """The modeled seconds of a step by kind of work (`KINDS`), and by op, the longest first."""

    by_kind: Mapping[str, float]
    by_op: tuple[OpTime, ...]
    by_step: Mapping[int, float]
    """Index of a node in the graph → the seconds of all its calls. The time of a launch shared by
    several updates counts for the first of them."""
    calls: int

    @property
    def seconds(self) -> float:
        """The seconds of the whole step."""
        return math.fsum(self.by_kind.values())

    def as_json(self) -> dict[str, Any]:
        """Return the figures as a JSON object."""
        return {
            "seconds": self.seconds,
            "calls": self.calls,
            "seconds_by_kind": dict(self.by_kind),
            "by_op": [
                {"op": t.op, "nodes": t.nodes, "calls": t.calls, "seconds": t.seconds}
                for t in self.by_op
            ],
        }


def model_step(plan: MemoryPlan, with_cudnn: bool = True) -> StepModel:
    """Model a step of a plan for a GPU.

    `with_cudnn` assumes that cuDNN is installed and serves every request.
    """
    tf32 = plan.settings.get("precision") == "tf32"
    works = bind(plan, ADDRESS, tf32, AnyEngine() if with_cudnn else None)
    by_kind = dict.fromkeys(KINDS, 0.0)
    by_op: dict[str, list[tuple[int, int, float]]] = {}
    by_step: dict[int, float] = {}
    for work in works:
        sizes = bytes_of_buffers(plan, work.nodes)
        times = list(_times(work, plan.device, sizes))
        launches = sum(not isinstance(call, BoundCopy) for call in work.calls)
        for kind, seconds in (*times, ("launches", LAUNCH_SECONDS * launches)):
            by_kind[kind] += seconds
        spent = LAUNCH_SECONDS * launches + sum(seconds for _, seconds in times)
        by_step[work.step] = spent
        entry = (len(work.nodes), len(work.calls), spent)
        by_op.setdefault(work.nodes[0].op.name, []).append(entry)
    found = []
    for op, entries in by_op.items():
        nodes, calls, seconds_of = zip(*entries, strict=True)
        found.append(OpTime(op, sum(nodes), sum(calls), math.fsum(seconds_of)))
    longest_first = tuple(sorted(found, key=lambda time: -time.seconds))
    return StepModel(by_kind, longest_first, by_step, sum(len(work.calls) for work in works))


class AnyEngine(Cudnn):
    """A model of cuDNN that serves every request without workspace."""

    def __init__(self) -> None:
        pass  # there is no library

    def build(self, request: Request, workspace_bytes: int, in_parts: bool = False) -> Plan:
        """Return a plan for a request, for modeling only: it cannot run."""
        return Plan(request, None, 0, 0, {})


def bytes_of_buffers(plan: MemoryPlan, nodes: Sequence[Node]) -> dict[int, int]:
    """Map the addresses of operands, results and workspace of some nodes to sizes in bytes.

    The arena is at `ADDRESS`.
    """
    found: dict[int, int] = {}
    for node in nodes:
        for value in (*node.inputs, *node.outputs):
            found[ADDRESS + plan.address(value)] = value.type.bytes
        sizes = [type.bytes for type in gpu_workspace(node, plan.device, plan.strided).types]
        starts, _ = workspace_starts(plan, node, ADDRESS, sizes)
        found |= zip(starts, sizes, strict=True)
    return found


def _times(work: Work, device: Device, sizes: Mapping[int, int]) -> Iterator[tuple[str, float]]:
    """Yield the kind and the seconds of each library call, then of all kernels of a node.

    Seconds do not include the launch. For kernels they are the maximum of compute time and memory
    time.
    """
    node = work.nodes[0]
    for call in work.calls:
        if isinstance(call, BoundGemm):
            yield _kind(node, "products"), _product_seconds(call, device)
        elif isinstance(call, BoundPlan):
            yield _kind(node, "convolutions"), _request_seconds(call.plan.request, node, device)
        elif isinstance(call, BoundExchange | BoundCopy):
            return  # it runs concurrently with other nodes, over a link
    reads = READS.get(node.op.name, 1.0)
    moving = reads * moved_bytes(work, sizes) / (device.bytes_per_second * MEMORY_PART)
    kernels = [call for call in work.calls if not isinstance(call, BoundGemm | BoundPlan)]
    is_alone = len(kernels) == len(work.calls)  # else library calls do the flops
    flops: float = sum(n.op.cost(n).flops for n in work.nodes) if is_alone else 0
    rate = device.flops_per_second * PLAIN_PART
    if isinstance(node.op, TiledAttention):
        flops *= OWN_PRODUCTS if "dq" in node.op.outputs else 1
        if tensor_cores.take(node):
            rate = device.product_rate(node.inputs[0].type.dtype) * OWN_ATTENTION_PART
    computing = flops / rate
    yield _kind(node, "other kernels"), max(moving, computing)


def moved_bytes(work: Work, sizes: Mapping[int, int]) -> int:
    """Return the bytes that the kernels of a node read and write, derived from their arguments."""
    launches = [call for call in work.calls if isinstance(call, BoundLaunch)]
    if launches and work.nodes[0].op.name in IN_PARTS:
        cost = work.nodes[0].op.cost(work.nodes[0])
        return cost.bytes_read + cost.bytes_written
    return sum(sizes.get(a, 0) for call in launches for a in call.arguments if isinstance(a, int))


def _kind(node: Node, otherwise: str) -> str:
    if node.op.convolves:
        return "convolutions"
    return "attention" if isinstance(node.op, TiledAttention) else otherwise


def _product_seconds(call: BoundGemm, device: Device) -> float:
    gemm = call.gemm
    matrices = (gemm.first, gemm.second, gemm.c)
    narrow = [m for m in matrices if m.dtype.itemsize == 2]
    is_aligned = all(m.leading * m.dtype.itemsize % ROW_BYTES == 0 for m in narrow)
    rate = device.product_rate(gemm.first.dtype, gemm.compute == COMPUTE_32F_FAST_TF32)
    shapes = ((gemm.m, gemm.k), (gemm.k, gemm.n), (gemm.m, gemm.n))
    moved = sum(
        m.dtype.itemsize * rows * columns * (gemm.batch if m.stride else 1)
        for m, (rows, columns) in zip(matrices, shapes, strict=True)
    )
    moved += round(gemm.beta) * gemm.batch * gemm.m * gemm.n * gemm.c.dtype.itemsize
    flops = 2 * gemm.batch * gemm.m * gemm.n * gemm.k
    part = PRODUCT_PART if is_aligned else UNALIGNED_PART
    if gemm.first.dtype.itemsize == 2 and (gemm.m % EXTENT_MULTIPLE or gemm.k % EXTENT_MULTIPLE):
        part = ODD_EXTENT_PART
    return _longer(device, flops, moved, rate * part)


def _request_seconds(request: Request, node: Node, device: Device) -> float:
    tensors = request.tensors.values()
    moved = sum(math.prod(t.shape) * t.dtype.itemsize for t in tensors)
    flops = node.op.cost(node).flops
    is_convolution = isinstance(request, ConvolutionRequest)
    dtype: DType = next(iter(tensors)).dtype
    rate = device.product_rate(dtype, is_convolution and getattr(request, "tf32", False))
    return _longer(device, flops, moved, rate * _part_of(request))


def _part_of(request: Request) -> float:
    """Return the fraction of peak arithmetic that cuDNN reaches for a request."""
    if not isinstance(request, ConvolutionRequest):
        return ATTENTION_PART if request.kind == "forward" else ATTENTION_GRADIENT_PART
    return PRODUCT_PART


def _longer(device: Device, flops: float, moved: float, rate: float) -> float:
    return max(flops / rate, moved / (device.bytes_per_second * MEMORY_PART))
