"""Groups of elementwise ops fused into one op; intermediate results take no bytes.

`graphc.passes.fusion.elementwise` makes such nodes, after differentiation. The members of a group
are written as calls, ``mul(x0, x1)`` or ``scale(m0, value=0.5)``. The inputs of the node are x0,
x1, ..., and the results of earlier members m0, m1, .... A number, as in ``mul(x0, 0.5)``, is a
constant of the dtype of the member's other floats. Every member computes the same as its op alone.
Its result is rounded to its own dtype, so the results of a group have the same bits as those of the
separate ops.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar

from graphc.errors import DTypeError, GraphError, ShapeError
from graphc.ir.attributes import Whole, checked_attributes
from graphc.ir.expression import Expression, ScalarProgram, parse
from graphc.ir.graph import Node
from graphc.ir.op import Array, Cost, Op, Recorder, attribute_items, find_op
from graphc.ir.types import DType, TensorType, bool_, compute_dtype
from graphc.ops.choice import Cast
from graphc.ops.cpu.numpy_expression import evaluate
from graphc.ops.elementwise import Elementwise

_CALL = re.compile(r"(\w+)\(([^()]*)\)")
_IDENTITY = parse("x")


@dataclass(frozen=True, slots=True)
class FusedAttributes:
    """Members as calls, in order, and the numbers of the members whose results are outputs."""

    members: tuple[str, ...]
    results: Annotated[tuple[int, ...], Whole()]


@dataclass(frozen=True, slots=True)
class Member:
    """An op of a group, its operands (names in the group, or constants), and its attributes."""

    op: Op
    operands: tuple[str, ...]
    attributes: Any

    def __str__(self) -> str:
        items = attribute_items(self.attributes)
        named = (f"{key}={float(x)!r}" if _is_number(x) else f"{key}={x}" for key, x in items)
        return f"{self.op.name}({', '.join((*self.operands, *named))})"

    @property
    def names(self) -> tuple[str, ...]:
        """The operands that are not constants."""
        return tuple(operand for operand in self.operands if constant(operand) is None)

    def types(self, known: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
        """Return the types of all operands, from the types `known` by name.

        Constants are scalars.
        """
        floats = [known[name].dtype for name in self.names if known[name].dtype.kind == "float"]
        if len(self.names) < len(self.operands) and not floats:
            raise GraphError(f"{self}: a constant needs a float operand in the same member")
        return tuple(
            known[operand] if constant(operand) is None else TensorType((), floats[0])
            for operand in self.operands
        )

    def infer(self, known: Mapping[str, TensorType]) -> TensorType:
        """Return the type of the member's result, from the types `known` by name."""
        (type,) = self.op.infer_types(self.attributes, self.types(known))
        return type

    @property
    def flops(self) -> int:
        """The floating-point operations per element."""
        if not isinstance(self.op, Elementwise):
            return 0
        return sum(expression.flops for expression in self.op.parsed.values())

    def expression(self, renamed: Sequence[str | float], dtypes: tuple[DType, ...]) -> Expression:
        """Return the member's expression, with its operands replaced by `renamed`."""
        if not isinstance(self.op, Elementwise):
            return _IDENTITY.specialize({"x": renamed[0]})
        program = self.op.scalar_program(self.attributes, dtypes)
        (expression,) = program.expressions.values()
        return expression.specialize(dict(zip(program.inputs, renamed, strict=True)))


class Fused(Elementwise):
    """y, ... = the results of some members of a group of elementwise ops, all of one shape."""

    name, inputs, outputs = "fused", ("*xs",), ("*ys",)
    attributes = FusedAttributes
    expressions = {}
    may_overwrite: ClassVar[dict[str, tuple[str, ...]]] = {"ys": ("xs",)}

    def infer(self, attributes: FusedAttributes, *types: TensorType) -> tuple[TensorType, ...]:
        members, results = members_of(attributes), attributes.results
        if not results or sorted(set(results)) != list(results) or results[-1] != len(members) - 1:
            raise GraphError(
                f"results must be ascending indices of the {len(members)} members that include "
                f"the last one, got {results}"
            )
        known = types_in(members, types)
        inferred = [known[f"m{index}"] for index in range(len(members))]
        if any(type.shape != inferred[0].shape for type in inferred):
            listed = ", ".join(map(str, inferred))
            raise ShapeError(f"members of a group must have equal shapes, got {listed}")
        if not share_arithmetic([type.dtype for type in known.values()]):
            listed = ", ".join(dict.fromkeys(str(type.dtype) for type in known.values()))
            raise DTypeError(
                f"a group must use one float dtype besides bool, got {listed}; leave dtype "
                "conversions out of the group"
            )
        return tuple(inferred[index] for index in results)

    def scalar_program(
        self, attributes: FusedAttributes, dtypes: tuple[DType, ...]
    ) -> ScalarProgram:
        members = members_of(attributes)
        inputs = tuple(f"x{index}" for index in range(len(dtypes)))
        outputs = tuple(f"y{index}" for index in range(len(attributes.results)))
        known = types_in(members, tuple(TensorType((), dtype) for dtype in dtypes))
        written = {f"m{m}": y for m, y in zip(attributes.results, outputs, strict=True)}
        names = {
            m: y
            for m, y in written.items()
            if not _reads_later(members, int(m[1:]), known[m].dtype.itemsize, known)
        }
        expressions: dict[str, Expression] = {}
        for index, member in enumerate(members):
            renamed = [_renamed(operand, names) for operand in member.operands]
            operands = tuple(type.dtype for type in member.types(known))
            name = f"m{index}"
            expressions[names.get(name, name)] = member.expression(renamed, operands)
        for m, y in written.items():
            if m not in names:
                expressions[y] = _IDENTITY.specialize({"x": m})
        locals = {name: known[name].dtype for name in expressions if name in known}
        return ScalarProgram(inputs, outputs, expressions, locals)

    def cost(self, node: Node) -> Cost:
        moved = super().cost(node)
        flops = sum(member.flops for member in members_of(node.attributes))
        elements = node.outputs[0].type.elements
        return Cost(flops * elements, moved.bytes_read, moved.bytes_written)

    def title(self, attributes: FusedAttributes) -> str:
        names = [member.op.name for member in members_of(attributes)]
        return "+".join(names if len(names) <= 4 else (*names[:2], "...", names[-1]))

    def kernel(self, record: Recorder, node: Node, *inputs: Array, **outputs: Any) -> None:
        record(evaluate(self.lowering(node), inputs, outputs["ys"], record.scratch))


def _reads_later(
    members: Sequence[Member], number: int, itemsize: int, known: dict[str, TensorType]
) -> bool:
    """Return whether members after member `number` read inputs that its result may overwrite.

    The result of such a member is copied to its output only after all members have run.
    """
    return any(
        name.startswith("x") and known[name].dtype.itemsize == itemsize
        for member in members[number + 1 :]
        for name in member.operands
    )


def types_in(members: Sequence[Member], types: Sequence[TensorType]) -> dict[str, TensorType]:
    """Return the types of the inputs and of all members' results, by name."""
    known = {f"x{index}": type for index, type in enumerate(types)}
    for index, member in enumerate(members):
        unknown = [name for name in member.names if name not in known]
        if unknown:
            raise GraphError(
                f"{member} reads {', '.join(unknown)}; a member can read only inputs x0, x1, ... "
                "and results m0, m1, ... of earlier members"
            )
        known[f"m{index}"] = member.infer(known)
    return known


def constant(operand: str) -> float | None:
    """Return the number if an operand of a member is a constant; None if it is a name."""
    try:
        return float(operand)
    except ValueError:
        return None


def _renamed(operand: str, names: Mapping[str, str]) -> str | float:
    number = constant(operand)
    return names.get(operand, operand) if number is None else number


def share_arithmetic(dtypes: Sequence[DType]) -> bool:
    """Return whether all dtypes are bool or floats that are computed in the same float type."""
    floats = {compute_dtype(dtype) for dtype in dtypes if dtype.kind == "float"}
    return len(floats) == 1 and all(dtype.kind == "float" or dtype == bool_ for dtype in dtypes)


def is_fusible(op: Op) -> bool:
    """Return whether an op can be a member of a group: elementwise, one output, no effect."""
    if isinstance(op, Cast):
        return True
    plain = isinstance(op, Elementwise) and not isinstance(op, Fused)
    return plain and not op.has_effect and not op.is_variadic and len(op.outputs) == 1


@functools.lru_cache(maxsize=4096)
def members_of(attributes: FusedAttributes) -> tuple[Member, ...]:
    """Parse the members from their calls; raises `GraphError` for an invalid call."""
    if not attributes.members:
        raise GraphError("a group needs at least one member")
    return tuple(_member(call) for call in attributes.members)


def _member(call: str) -> Member:
    found = _CALL.fullmatch(call)
    if found is None:
        raise GraphError(f"a member must be a call such as 'scale(x0, value=0.5)', got {call!r}")
    op = find_op(found[1])
    if not is_fusible(op):
        raise GraphError(
            f"{op.name} cannot be a member; a member must be elementwise and without side effects"
        )
    given = [part for part in found[2].split(", ") if part]
    operands = tuple(part for part in given if "=" not in part)
    if len(operands) != len(op.inputs):
        raise GraphError(f"{op.name} takes {len(op.inputs)} operands, got {call!r}")
    named = dict(part.split("=", 1) for part in given if "=" in part)
    known = [field.name for field in fields(op.attributes)]
    if sorted(named) != sorted(known):
        raise GraphError(f"{op.name} needs the attributes {known}, got {call!r}")
    attributes = checked_attributes(op.attributes(**{k: _literal(v) for k, v in named.items()}))
    return Member(op, operands, attributes)


def _literal(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _is_number(given: object) -> bool:
    return not isinstance(given, str)
