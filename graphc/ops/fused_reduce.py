"""A reduction fused with elementwise ops before and after it; a GPU does not store its operand.

`graphc.passes.fusion.reductions` makes such nodes, in plans for a GPU. The ops before the reduction
are its members, written as in `graphc.ops.fused`. The last member computes the operand of the
reduction, rounded to its dtype as if it were stored. Without members, the operand is the input. The
ops in `after` are written the same way, with the result of the reduction as x0.

The NumPy kernel stores the operand in scratch: NumPy's pairwise sums would have other bits if
computed by tiles. The op saves no memory on a CPU, so plans for a CPU do not use it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np

from graphc.devices.device import Device
from graphc.errors import DTypeError, GraphError, ShapeError, choose
from graphc.ir.attributes import Whole
from graphc.ir.expression import ScalarProgram, parse
from graphc.ir.graph import Node, Value
from graphc.ir.op import REGISTRY, Array, Cost, Op, Recorder
from graphc.ir.types import DType, TensorType, compute_dtype
from graphc.ops.cpu.numpy_expression import Lowering, evaluate, lower, registers_type
from graphc.ops.fused import Fused, FusedAttributes, members_of
from graphc.ops.reduce import Max, Mean, Min, ReduceAttributes, SquareSum, Sum

REDUCTIONS: dict[str, type[Op]] = {op.name: op for op in (Max, Mean, Min, SquareSum, Sum)}
"""Name → op, for the reductions that can be fused."""

OPERAND = "x"
"""The name of the reduction's operand in the scalar program of the members."""

_OPERAND = parse(OPERAND)


@dataclass(frozen=True, slots=True)
class FusedReduceAttributes:
    """Members as calls, and the reduction with its axes and the memory order of its operand.

    `reduction` is the name of an op in `REDUCTIONS`. `order` lists the operand's axes from
    outermost to innermost in memory, as if it were stored. On a GPU, it determines the order of
    additions. Calls of `after` are applied to the reduction's result, named x0 there.
    """

    members: tuple[str, ...]
    reduction: str
    axes: Annotated[tuple[int, ...], Whole()]
    keepdims: bool
    order: Annotated[tuple[int, ...], Whole()]
    after: tuple[str, ...]

    @property
    def group(self) -> FusedAttributes:
        """The group of elementwise ops whose last result is reduced."""
        return FusedAttributes(self.members, (len(self.members) - 1,))

    @property
    def groups(self) -> tuple[FusedAttributes, FusedAttributes]:
        """The groups before and after the reduction; a group without members does nothing."""
        return self.group, self.behind

    @property
    def behind(self) -> FusedAttributes:
        """The group of ops applied to the result."""
        return FusedAttributes(self.after, (len(self.after) - 1,))


class FusedReduce(Op):
    """A reduction over axes of the last result of a group of elementwise ops."""

    name, inputs = "fused_reduce", ("*xs",)
    attributes = FusedReduceAttributes
    native_16_bit = True
    any_strides = True

    def infer(self, attributes: FusedReduceAttributes, *types: TensorType) -> TensorType:
        choose("reduction", attributes.reduction, tuple(REDUCTIONS))
        operand = operand_type(attributes, types)
        if operand.dtype.kind != "float":
            raise DTypeError(f"the reduced operand must be a float tensor, got {operand}")
        if sorted(attributes.order) != list(range(operand.rank)):
            raise ShapeError(
                f"order must be a permutation of the axes from 0 to {operand.rank - 1}, got "
                f"{attributes.order}"
            )
        whole = (tuple(range(operand.rank)), False)
        if attributes.reduction == SquareSum.name and whole != (
            attributes.axes,
            attributes.keepdims,
        ):
            raise GraphError(
                "square_sum must reduce all axes without keepdims, got "
                f"axes={attributes.axes} and keepdims={attributes.keepdims}"
            )
        result = _reduction(attributes, operand).output.type
        return _result_of(attributes.behind, (result,))

    def scalar_program(
        self, attributes: FusedReduceAttributes, dtypes: tuple[DType, ...]
    ) -> ScalarProgram:
        """Return the arithmetic of members per element.

        Results are locals, the last one is `OPERAND`.
        """
        if not attributes.members:
            return ScalarProgram(("x0",), (), {OPERAND: parse("x0")}, {OPERAND: dtypes[0]})
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
        """Return the type of the operand of the reduction."""
        return operand_type(node.attributes, tuple(value.type for value in node.inputs))

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        operand = self.operand(node)
        reduction = _reduction(node.attributes, operand)
        total = _flops(node.attributes.group) * operand.elements
        total += reduction.op.cost(reduction).flops
        total += _flops(node.attributes.behind) * node.output.type.elements
        return Cost(total, moved.bytes_read, moved.bytes_written)

    def title(self, attributes: FusedReduceAttributes) -> str:
        names = [_fused().title(group) if group.members else "" for group in attributes.groups]
        return "+".join(filter(None, (names[0], attributes.reduction, names[1])))

    def result(self, node: Node) -> TensorType:
        """Return the type of the reduction's result."""
        return _reduction(node.attributes, self.operand(node)).output.type

    def scratch(self, node: Node, device: Device) -> tuple[TensorType, ...]:
        """Return the scratch types of the kernel.

        They are the operand and the result, with 16-bit floats widened to float32, then the result
        in the dtype of the separate op. The registers before and after the reduction follow, then
        the scratch of the reduction.
        """
        wide = _wide(self.operand(node))
        reduction = _reduction(node.attributes, wide)
        before, behind = self.lowerings(node)
        return (
            wide,
            reduction.output.type,
            self.result(node),
            *registers_type(before, wide),
            *registers_type(behind, node.output.type),
            *reduction.op.scratch(reduction, device),
        )

    def lowerings(self, node: Node) -> tuple[Lowering, Lowering]:
        """Return the NumPy calls that compute the operand, and the NumPy calls applied to the
        result."""
        dtypes = tuple(value.type.dtype for value in node.inputs)
        before = self.scalar_program(node.attributes, dtypes)
        wide, result = _wide(self.operand(node)), self.result(node)
        behind = self.program_behind(node)
        return (
            lower(
                {**before.expressions, "wide": _OPERAND},
                dict(zip(before.inputs, dtypes, strict=True)),
                {"wide": wide.dtype},
                before.locals,
            ),
            lower(
                behind.expressions,
                {"x0": result.dtype},
                {"y0": node.output.type.dtype},
                behind.locals,
            ),
        )

    def program_behind(self, node: Node) -> ScalarProgram:
        """Return the program that computes the output y0 from the reduction's result x0."""
        dtypes = (self.result(node).dtype,)
        if not node.attributes.after:
            return ScalarProgram(("x0",), ("y0",), {"y0": parse("x0")})
        return _fused().scalar_program(node.attributes.behind, dtypes)

    def kernel(self, record: Recorder, node: Node, *xs: Array, y: Array) -> None:
        operand, wide, result, *others = record.scratch
        before, behind = self.lowerings(node)
        first = len(before.registers)
        second = first + len(behind.registers)
        reduction = _reduction(node.attributes, _wide(self.operand(node)))
        record(evaluate(before, xs, [operand], others[:first]))
        inner = _WithScratch(record, tuple(others[second:]))
        reduction.op.kernel(inner, reduction, operand, y=wide)  # type: ignore[attr-defined]
        record(np.copyto, result, wide, casting="same_kind")
        record(evaluate(behind, [result], [y], others[first:second]))


class _WithScratch:
    """A recorder for a part of a kernel, with the scratch of that part."""

    def __init__(self, record: Recorder, scratch: tuple[Array, ...]) -> None:
        self.record, self.scratch = record, scratch

    def __call__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self.record(function, *args, **kwargs)


def operand_type(attributes: FusedReduceAttributes, types: tuple[TensorType, ...]) -> TensorType:
    """Return the type of the operand of the reduction."""
    return _result_of(attributes.group, types)


def _result_of(group: FusedAttributes, types: tuple[TensorType, ...]) -> TensorType:
    """Return the type of a group's only result; without members, of its only input."""
    if group.members:
        (result,) = _fused().infer(group, *types)
        return result
    if len(types) != 1:
        raise GraphError(f"a reduction without members needs one input, got {len(types)}")
    return types[0]


def _flops(group: FusedAttributes) -> int:
    """Return the floating-point operations of a group per element."""
    return sum(member.flops for member in members_of(group)) if group.members else 0


def _fused() -> Fused:
    op = REGISTRY[Fused.name]
    assert isinstance(op, Fused)
    return op


def _wide(type: TensorType) -> TensorType:
    return type.with_dtype(compute_dtype(type.dtype))


def reduction_of(attributes: FusedReduceAttributes) -> tuple[Op, Any]:
    """Return the op of the reduction, and the attributes of that op."""
    op = REGISTRY[attributes.reduction]
    if op.attributes is ReduceAttributes:
        return op, ReduceAttributes(attributes.axes, attributes.keepdims)
    return op, op.attributes()


def _reduction(attributes: FusedReduceAttributes, operand: TensorType) -> Node:
    """Return the reduction as a separate node, on an operand of that type."""
    op, given = reduction_of(attributes)
    return Node(op, (Value(operand),), given, op.infer_types(given, (operand,)), serial=0)
