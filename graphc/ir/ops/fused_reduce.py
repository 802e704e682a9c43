"""A reduction of what a group of elementwise ops computes: the operand is never in memory on a GPU.

`graphc.passes.fuse_reductions` makes such nodes, in plans for a GPU. Members are written as those
of `graphc.ir.ops.fused`; the last one makes the operand, rounded to its dtype as if it were stored.
The NumPy kernel stores it, in scratch: by tiles, NumPy's pairwise sums would have other bits. So
the op saves nothing on a CPU, and no plan for one has it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import DTypeError, GraphError, ShapeError, choose
from graphc.ir.device import Device
from graphc.ir.expression import ScalarProgram, parse
from graphc.ir.graph import Node, Value
from graphc.ir.numpy_expression import Lowering, compute_dtype, evaluate, lower, registers_type
from graphc.ir.op import REGISTRY, Array, Cost, Op, Recorder
from graphc.ir.ops.fused import Fused, FusedAttributes, members_of
from graphc.ir.ops.reduce import Max, Mean, ReduceAttributes, SquareSum, Sum
from graphc.ir.types import DType, TensorType

REDUCTIONS: dict[str, type[Op]] = {op.name: op for op in (Max, Mean, SquareSum, Sum)}
"""What may be made of the operand."""

OPERAND = "x"
"""The name of the operand in the scalar program."""

_OPERAND = parse(OPERAND)


@dataclass(frozen=True, slots=True)
class FusedReduceAttributes:
    """Members as calls, the name of the reduction's op, its axes and `keepdims`, and the axes of
    the operand from the outermost in memory to the innermost, were it there.

    On a GPU, the order of additions follows that of the axes.
    """

    members: tuple[str, ...]
    reduction: str
    axes: tuple[int, ...]
    keepdims: bool
    order: tuple[int, ...]

    @property
    def group(self) -> FusedAttributes:
        """The group of elementwise ops whose last result is reduced."""
        return FusedAttributes(self.members, (len(self.members) - 1,))


class FusedReduce(Op):
    """y = a reduction over axes of the last result of a group of elementwise ops."""

    name, inputs = "fused_reduce", ("*xs",)
    attributes = FusedReduceAttributes
    native_16_bit = True

    def infer(self, attributes: FusedReduceAttributes, *types: TensorType) -> TensorType:
        choose("reduction", attributes.reduction, tuple(REDUCTIONS))
        operand = operand_type(attributes, types)
        if operand.dtype.kind != "float":
            raise DTypeError(f"what is reduced is a float tensor, got {operand}")
        if sorted(attributes.order) != list(range(operand.rank)):
            raise ShapeError(
                f"order lists the axes from 0 to {operand.rank - 1}, got {attributes.order}"
            )
        whole = (tuple(range(operand.rank)), False)
        if attributes.reduction == SquareSum.name and whole != (
            attributes.axes,
            attributes.keepdims,
        ):
            raise GraphError("square_sum reduces all axes and keeps none")
        return _reduction(attributes, operand).output.type

    def scalar_program(
        self, attributes: FusedReduceAttributes, dtypes: tuple[DType, ...]
    ) -> ScalarProgram:
        """What is computed of every element: all results are locals, the last one is `OPERAND`."""
        program = _fused().scalar_program(attributes.group, dtypes)
        (last,) = program.outputs
        operand = operand_type(attributes, tuple(TensorType((), dtype) for dtype in dtypes))
        return ScalarProgram(
            program.inputs,
            (),
            {OPERAND if n == last else n: e for n, e in program.expressions.items()},
            {**program.locals, OPERAND: operand.dtype},
        )

    def operand(self, node: Node) -> TensorType:
        """The type of what is reduced."""
        return operand_type(node.attributes, tuple(value.type for value in node.inputs))

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        operand = self.operand(node)
        flops = sum(member.flops for member in members_of(node.attributes.group))
        reduction = _reduction(node.attributes, operand)
        total = flops * operand.elements + reduction.op.cost(reduction).flops
        return Cost(total, moved.bytes_read, moved.bytes_written)

    def title(self, attributes: FusedReduceAttributes) -> str:
        return f"{_fused().title(attributes.group)}+{attributes.reduction}"

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """The operand and the result, widened; what the reduction needs; registers."""
        wide = _wide(self.operand(node))
        reduction = _reduction(node.attributes, wide)
        own = reduction.op.scratch(reduction, device)
        registers = registers_type(self.lowering(node), wide)
        return (wide, reduction.output.type, *own, *registers)

    def lowering(self, node: Node) -> Lowering:
        """What computes the operand, as NumPy steps."""
        dtypes = tuple(value.type.dtype for value in node.inputs)
        program = self.scalar_program(node.attributes, dtypes)
        wide = _wide(self.operand(node))
        return lower(
            {**program.expressions, "wide": _OPERAND},
            dict(zip(program.inputs, dtypes, strict=True)),
            {"wide": wide.dtype},
            program.locals,
        )

    def kernel(self, record: Recorder, node: Node, *xs: Array, y: Array) -> None:
        operand, result, *others = record.scratch
        reduction = _reduction(node.attributes, _wide(self.operand(node)))
        count = len(others) - len(self.lowering(node).registers)
        record(evaluate(self.lowering(node), xs, [operand], others[count:]))
        inner = _WithScratch(record, tuple(others[:count]))
        reduction.op.kernel(inner, reduction, operand, y=result)  # type: ignore[attr-defined]
        record(np.copyto, y, result, casting="same_kind")


class _WithScratch:
    """A recorder for a part of a kernel, with the scratch of that part."""

    def __init__(self, record: Recorder, scratch: tuple[Array, ...]) -> None:
        self.record, self.scratch = record, scratch

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.record(function, *args, **kwargs)


def operand_type(attributes: FusedReduceAttributes, types: tuple[TensorType, ...]) -> TensorType:
    """The type of what is reduced."""
    (operand,) = _fused().infer(attributes.group, *types)
    return operand


def _fused() -> Fused:
    op = REGISTRY[Fused.name]
    assert isinstance(op, Fused)
    return op


def _wide(type: TensorType) -> TensorType:
    return type.with_dtype(compute_dtype(type.dtype))


def _reduction(attributes: FusedReduceAttributes, operand: TensorType) -> Node:
    """The reduction as a node of its own, on an operand of that type."""
    op = REGISTRY[attributes.reduction]
    given: Any = op.attributes
    if given is ReduceAttributes:
        given = ReduceAttributes(attributes.axes, attributes.keepdims)
    else:
        given = given()
    return Node(op, (Value(operand),), given, op.infer_types(given, (operand,)), serial=0)
