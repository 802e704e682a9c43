"""Performance lints: causes of slow steps on a GPU, found in the calls of a plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from graphc.byte_sizes import format_bytes
from graphc.codegen.workspace import product_workspace_bytes
from graphc.ir.graph import Node
from graphc.ir.types import ROW_BYTES
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.gpu.bind import BoundGemm, BoundLaunch, Work, bind
from graphc.runtime.gpu.cublaslt import located
from graphc.runtime.gpu.step_model import (
    ADDRESS,
    AnyEngine,
    StepModel,
    bytes_of_buffers,
    model_step,
    moved_bytes,
)

Rule = Literal["rows", "products", "bytes", "workspace", "launches"]

MOST_PRODUCTS = 4
"""A node with more matrix products than this violates the rule ``products``."""

MOST_PASSES = 1.75
"""The largest accepted ratio of the bytes that kernels of a node move to the bytes of its operands
and results."""

LEAST_BYTES = 2**20
"""The smallest number of moved bytes of a node for which the rule ``bytes`` applies."""

MOST_LAUNCHES = 0.25
"""Launches that take a larger fraction of the modeled step violate the rule ``launches``."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding at a node of a plan, or about the whole step if `node` is empty."""

    rule: Rule
    node: str
    op: str
    what: str


def findings(plan: MemoryPlan, with_cudnn: bool = True) -> list[Finding]:
    """Return all findings of a plan for a GPU, in the order of its nodes.

    `with_cudnn` is the argument of `model_step`.

    - ``rows``: a 16-bit operand of a product has rows that are not aligned to 16 bytes.
    - ``products``: a node has more than `MOST_PRODUCTS` products and is not a convolution.
    - ``bytes``: kernels move the operands and results of a node more than `MOST_PASSES` times.
    - ``workspace``: a product has less workspace for partial sums than it could use.
    - ``launches``: launches take more than `MOST_LAUNCHES` of the modeled step.
    """
    tf32 = plan.settings.get("precision") == "tf32"
    found: list[Finding] = []
    for work in bind(plan, ADDRESS, tf32, AnyEngine() if with_cudnn else None):
        node = work.nodes[0]
        for rule, what in (*_of_products(work, plan), *_of_bytes(work, plan)):
            found.append(Finding(rule, node.label, node.op.name, what))
    return [*found, *_of_launches(model_step(plan, with_cudnn))]


def _of_products(work: Work, plan: MemoryPlan) -> Iterator[tuple[Rule, str]]:
    products = [call for call in work.calls if isinstance(call, BoundGemm)]
    if len(products) > MOST_PRODUCTS and not work.nodes[0].op.convolves:
        yield "products", f"{len(products)} products"
    unaligned = sorted({text for call in products for text in _unaligned(call)})
    if unaligned:
        yield "rows", ", ".join(unaligned)
    for call in products:
        wanted = min(product_workspace_bytes(call.gemm), plan.device.blas_workspace_bytes)
        if call.workspace_bytes < wanted:
            yield "workspace", f"{format_bytes(call.workspace_bytes)} of {format_bytes(wanted)}"
            return


def _unaligned(call: BoundGemm) -> Iterator[str]:
    gemm = call.gemm
    for name, matrix in (("first", gemm.first), ("second", gemm.second), ("result", gemm.c)):
        size = matrix.dtype.itemsize
        steps = (located(matrix, call.addresses), matrix.leading * size, matrix.stride * size)
        if size == 2 and any(step % ROW_BYTES for step in steps):
            yield f"{name} of rows {matrix.leading} elements apart"


def _of_bytes(work: Work, plan: MemoryPlan) -> Iterator[tuple[Rule, str]]:
    """Yield findings of the rule ``bytes``, for nodes without library calls."""
    if not all(isinstance(call, BoundLaunch) for call in work.calls):
        return
    moved = moved_bytes(work, bytes_of_buffers(plan, work.nodes))
    held = sum(_held(node) for node in work.nodes)
    if moved > LEAST_BYTES and moved > MOST_PASSES * held:
        yield "bytes", f"{moved / held:.1f} times {format_bytes(held)}"


def _held(node: Node) -> int:
    return sum(value.type.bytes for value in dict.fromkeys((*node.inputs, *node.outputs)))


def _of_launches(step: StepModel) -> Iterator[Finding]:
    part = step.by_kind["launches"] / (step.seconds or 1.0)
    if part > MOST_LAUNCHES:
        yield Finding("launches", "", "", f"{step.calls} calls, {part:.0%} of the step")
