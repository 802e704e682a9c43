"""Rules of elementwise ops, and programs that copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import NodeCalls, Scratch
from graphc.codegen.rules import programs_of
from graphc.codegen.text.operands import (
    Operand,
    Place,
    Places,
    counter,
    in_one_piece,
    on_frame,
    operand,
)
from graphc.ir.expression import Expression, parse
from graphc.ir.graph import Node, Value
from graphc.ir.types import int64
from graphc.ops.elementwise import Elementwise

IDENTITY = parse("x")


@programs_of(Elementwise)
def _evaluated(node: Node, places: Places) -> NodeCalls:
    """Return the program of an op that is defined by expressions, such as an optimizer's update."""
    op, shape = node.op, node.outputs[0].shape
    assert isinstance(op, Elementwise)
    program = op.scalar_program(node.attributes, tuple(v.type.dtype for v in node.inputs))
    inputs, outputs = (
        tuple(operand(name, v, places[v], shape) for name, v in zip(names, values, strict=True))
        for names, values in ((program.inputs, node.inputs), (program.outputs, node.outputs))
    )
    each = Each(op.name, shape, inputs, outputs, program.expressions, program.locals)
    return NodeCalls((each,))


def _each(node: Node, places: Places, inputs: Sequence[Operand], expression: Expression) -> Each:
    y = node.output
    target = operand("y", y, places[y], y.shape)
    return Each(node.op.name, y.shape, tuple(inputs), (target,), {"y": expression})


def copied(x: Value, y: Value, places: Places) -> Each:
    """Return a program that copies x into y, with broadcasting."""
    source, target = (operand(name, v, places[v], y.shape) for name, v in (("x", x), ("y", y)))
    return Each("copy", y.shape, (source,), (target,), {"y": IDENTITY})


def straightened(x: Value, places: Places, target: Scratch, piece: Place) -> Each:
    """Return a program that copies x to the scratch `target`, with the address and strides of
    `piece`."""
    source = operand("x", x, places[x], x.shape)
    alike = replace(operand("y", x, piece, x.shape), buffer=target)
    return Each("copy", x.shape, (source,), (alike,), {"y": IDENTITY})


@programs_of("cast", "copy")
def _unchanged(node: Node, places: Places) -> NodeCalls:
    (x,) = node.inputs
    source = operand("x", x, places[x], node.output.shape)
    return NodeCalls((_each(node, places, [source], IDENTITY),))


@programs_of("full")
def _full(node: Node, places: Places) -> NodeCalls:
    return NodeCalls((_each(node, places, [], _number(node.attributes.value)),))


def _number(value: float) -> Expression:
    return parse("value").specialize({"value": float(value)})


@programs_of("reshape")
def _reshaped(node: Node, places: Places) -> NodeCalls:
    """Return a program that copies x to a contiguous y, used if the strides of x allow no view of
    y's shape."""
    (x,), y = node.inputs, node.output
    source = operand("x", x, places[x], x.shape)
    alike = in_one_piece(x.type)
    target = operand("y", x, alike, x.shape)
    target = replace(target, buffer=y, address=places[y].address)
    return NodeCalls((Each("reshape", x.shape, (source,), (target,), {"y": IDENTITY}),))


@programs_of("one_hot")
def _one_hot(node: Node, places: Places) -> NodeCalls:
    (indices,) = node.inputs
    y = node.output
    axis = y.type.rank - 1
    labels = operand("label", indices, places[indices], indices.shape)
    labels = labels.on((*labels.strides, 0))
    place = counter("place", int64, axis, y.type.rank)
    hit = parse("where(place == label, 1, 0)")
    return NodeCalls((_each(node, places, [labels, place], hit),))


@programs_of("softmax_cross_entropy_gradient")
def _cross_entropy_gradient(node: Node, places: Places) -> NodeCalls:
    probabilities, labels, dloss = node.inputs
    rows, classes = probabilities.shape
    label = operand("label", labels, places[labels], (rows,))
    inputs = [
        operand("p", probabilities, places[probabilities], (rows, classes)),
        label.on((*label.strides, 0)),
        operand("dloss", dloss, places[dloss], (rows, classes)),
        counter("place", int64, 1, 2),
    ]
    source = "(p - where(place == label, 1, 0)) * dloss / rows"
    expression = parse(source).specialize({"rows": float(rows)})
    output = node.output
    target = operand("dlogits", output, places[output], output.shape)
    shape = (rows, classes)
    each = Each(node.op.name, shape, tuple(inputs), (target,), {"dlogits": expression})
    return NodeCalls((each,))


def _part(
    node: Node, places: Places, part: Value, starts: Sequence[int], steps: Sequence[int]
) -> Each:
    """Return a program that copies a tensor to the output from `starts` on, every `steps` elements
    per axis."""
    y, source = node.output, operand("x", part, places[part], part.shape)
    own = operand("y", y, places[y], y.shape).strides
    start = sum(n * stride for n, stride in zip(starts, own, strict=True))
    strides = [n * stride for n, stride in zip(steps, own, strict=True)]
    target = Operand("y", y.type.dtype, tuple(strides), y, places[y].address, start)
    return Each(node.op.name, part.shape, (source,), (target,), {"y": IDENTITY})


@programs_of("concat")
def _concatenated(node: Node, places: Places) -> NodeCalls:
    """Return one copy program per part, except for parts that were computed inside the output."""
    y, axis, copies, start = node.output, node.attributes.axis, [], 0
    whole = places[y]
    for part in node.inputs:
        address = whole.address + start * whole.strides[axis]
        if places[part] != Place(address, whole.strides):
            starts = [start if i == axis else 0 for i in range(y.type.rank)]
            copies.append(_part(node, places, part, starts, (1,) * y.type.rank))
        start += part.shape[axis]
    return NodeCalls(tuple(copies))


@programs_of("pad_slice")
def _padded(node: Node, places: Places) -> NodeCalls:
    """Return two programs: one fills the output with a number, the other copies the input to its
    slice."""
    (x,), where = node.inputs, node.attributes
    fill = _each(node, places, [], _number(where.value))
    return NodeCalls((fill, _part(node, places, x, where.starts, where.steps)))


@programs_of("reverse")
def _reversed(node: Node, places: Places) -> NodeCalls:
    """Return a program that copies x in reverse order along some axes, by negative strides."""
    (x,), axes = node.inputs, node.attributes.axes
    own = operand("x", x, places[x], x.shape)
    start = sum((x.shape[axis] - 1) * own.strides[axis] for axis in axes)
    strides = [-n if axis in axes else n for axis, n in enumerate(own.strides)]
    source = replace(own.on(strides), start=start)
    return NodeCalls((_each(node, places, [source], IDENTITY),))


@programs_of("upsample_nearest2d")
def _repeated(node: Node, places: Places) -> NodeCalls:
    """Return a program that repeats rows and columns. Its index space splits both into two axes:
    the index in x, and the number of the repetition."""
    (x,), y, factor = node.inputs, node.output, node.attributes.factor
    batch, channels, rows, columns = x.shape
    frame = (batch, channels, rows, factor, columns, factor)
    source = on_frame("x", x, places[x], (batch, channels, rows, 1, columns, 1), frame)
    target = on_frame("y", y, places[y], frame, frame)
    return NodeCalls((Each(node.op.name, frame, (source,), (target,), {"y": IDENTITY}),))
