"""Inlining of constants into fused groups, so that no node has to fill a tensor with a constant.

The pass runs after the fusions of `elementwise.py` and `reductions.py`. A constant is the output of
`full`, also through views. It is inlined only if no bit of the result can change. For example, a
compiler would fold an op whose operands are all constants, and its result may differ from that of
the device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from graphc.ir.expression import Expression, Operand
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import rewrite
from graphc.ir.types import TensorType, broadcast_shapes
from graphc.ops.elementwise import Elementwise
from graphc.ops.fused import Fused, FusedAttributes, Member, constant, members_of, types_in
from graphc.ops.fused_reduce import FusedReduce
from graphc.ops.shape import Full
from graphc.passes.dead_code import remove_dead_code


def inline_constants(graph: Graph) -> Graph:
    """Return the graph with constants inlined in fused groups.

    Nodes whose only purpose was to fill a tensor with such a constant are removed.
    """
    originals = {node.copy_of for node in graph.nodes if node.copy_of is not None}
    """Nodes that have recomputed copies. A copy refers to its original, so originals are not
    removed."""
    numbers: dict[Value, float] = {}
    for node in graph.nodes:
        number = _number(node, numbers)
        stays = node in originals or node.phase == "mirror" or graph.kept & {*node.outputs}
        if number is not None and not stays:
            numbers.update(dict.fromkeys(node.outputs, number))
    if not numbers:
        return graph
    changed: list[Node] = []

    def replacement(node: Node) -> Node:
        made = _inlined(node, numbers) if isinstance(node.op, Fused | FusedReduce) else node
        if made is not node:
            changed.append(made)
        return made

    found = rewrite(graph, replacement)
    return remove_dead_code(found) if changed else graph


def _number(node: Node, numbers: Mapping[Value, float]) -> float | None:
    """Return the number that fills all elements of a node's output.

    Returns None if the elements differ, or if inlining the number could change a bit.
    """
    if (viewed := node.viewed) is not None:
        return numbers.get(viewed)
    if not isinstance(node.op, Full) or node.output.type.dtype.kind != "float":
        return None
    number, dtype = float(node.attributes.value), node.output.type.dtype
    with np.errstate(over="ignore"):
        rounded = float(dtype.numpy.type(number))
    # a GPU rounds to 16 bits by way of float32; minus zero is lost where it is masked
    is_exact = rounded == number or dtype.itemsize > 2
    is_plain = math.isfinite(rounded) and (rounded != 0 or math.copysign(1, rounded) > 0)
    return rounded if is_exact and is_plain else None


def _inlined(node: Node, numbers: Mapping[Value, float]) -> Node:
    """Return a fused node with inputs in `numbers` as constants, where this changes no bit."""
    if not _group(node).members:
        return node
    members = members_of(_group(node))
    known = types_in(members, [value.type for value in node.inputs])
    constants = {f"x{i}": numbers[v] for i, v in enumerate(node.inputs) if v in numbers}
    # A constant that one member cannot take stays an input for all: check the others again.
    is_settled = False
    while constants and not is_settled:
        wrong = {
            name
            for index, member in enumerate(members)
            if constants.keys() & {*member.names}
            and not _may_be_put_in(member, constants, known, known[f"m{index}"])
            for name in member.names
        }
        is_settled = not constants.keys() & wrong
        constants = {name: number for name, number in constants.items() if name not in wrong}
    if not constants:
        return node
    left = [i for i in range(len(node.inputs)) if f"x{i}" not in constants]
    operands = {f"x{old}": f"x{new}" for new, old in enumerate(left)}
    operands |= {name: repr(number) for name, number in constants.items()}
    calls = tuple(
        str(replace(member, operands=tuple(operands.get(o, o) for o in member.operands)))
        for member in members
    )
    inputs = tuple(node.inputs[i] for i in left)
    return replace(node, inputs=inputs, attributes=replace(node.attributes, members=calls))


def _group(node: Node) -> FusedAttributes:
    attributes: FusedAttributes = (
        node.attributes if isinstance(node.op, Fused) else node.attributes.group
    )
    return attributes


def _may_be_put_in(
    member: Member,
    constants: Mapping[str, float],
    known: Mapping[str, TensorType],
    made: TensorType,
) -> bool:
    """Return True if a member of a group has the same type and bits with `constants` for operands.

    `known` has the types of all values of the group, and `made` is the type of the member's result.
    """
    others = [known[name] for name in member.names if name not in constants]
    floats = {type.dtype for type in others if type.dtype.kind == "float"}
    given = {known[name].dtype for name in member.names if name in constants}
    if len(floats) != 1 or floats != given or not isinstance(member.op, Elementwise):
        return False
    shapes = [type.shape for type in others]
    if broadcast_shapes(member.op.name, *shapes) != made.shape:
        return False
    dtypes = tuple(type.dtype for type in member.types(known))
    return not _computes_of_constants(member.expression(member.operands, dtypes), constants)


def _computes_of_constants(expression: Expression, constants: Mapping[str, float]) -> bool:
    """Return True if an instruction reads only constants, or is a power with a constant.

    Compilers fold the former and often rewrite the latter, which may change bits.
    """

    def is_constant(operand: Operand) -> bool:
        if isinstance(operand, str):
            return operand in constants or constant(operand) is not None
        return isinstance(operand, float)

    return any(
        all(map(is_constant, each.operands))
        or (each.function == "power" and any(map(is_constant, each.operands)))
        for each in expression.instructions
    )
