"""Import of static control flow: known branches are selected, loops are unrolled."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

import graphc
from graphc.importing.calls import UnsupportedError, check_turns
from graphc.importing.weights import MOST_TURNS, Weight, known
from graphc.ir.graph import Value
from graphc.ir.types import normalize_axis
from graphc.onnx.calls import OnnxCall, Operand, rule


@rule("If")
def branch(call: OnnxCall) -> Sequence[Operand]:
    """Import the branch of If that a known condition selects."""
    name = "then_branch" if call.number(0) else "else_branch"
    return _body(call, call.required(name), {})


def _body(call: OnnxCall, graph: onnx.GraphProto, given: dict[str, Operand]) -> list[Operand]:
    return call.subgraph(graph, given)


@rule("Loop")
def loop(call: OnnxCall) -> Sequence[Operand]:
    """Unroll a Loop; its iteration count and the condition of each iteration must be known."""
    body: onnx.GraphProto = call.required("body")
    names = [value.name for value in body.input]
    carried = [call.operand(i) for i in range(2, len(call.arguments))]
    turns = int(call.number(0)) if call.has(0) else MOST_TURNS + 1
    goes_on = bool(call.number(1)) if call.has(1) else True
    collected: list[list[Operand]] = [[] for _ in body.output[1 + len(carried) :]]
    is_fixed, turn = _is_fixed(body), 0
    while goes_on and turn < turns:
        check_turns(turns if turn == 1 and is_fixed else turn + 1)
        given = dict(
            zip(names, (_scalar(turn, np.int64), _scalar(goes_on, np.bool_), *carried), strict=True)
        )
        found = _body(call, body, given)
        if not isinstance(found[0], Weight):
            raise UnsupportedError("its condition must be constant, but the step computes it")
        goes_on = bool(found[0].read())
        carried = found[1 : 1 + len(carried)]
        for parts, part in zip(collected, found[1 + len(carried) :], strict=True):
            parts.append(part)
        turn += 1
    return [*carried, *(_stacked(call, parts, 0) for parts in collected)]


def _is_fixed(body: onnx.GraphProto) -> bool:
    """Return True if a loop's condition is the same after every iteration.

    The condition is then passed through the body, a constant, or a tensor from outside of the body.
    """
    makers = {name: node for node in body.node for name in node.output}
    maker = makers.get(name := body.output[0].name)
    while maker is not None and maker.op_type == "Identity":
        maker = makers.get(name := maker.input[0])
    carried = {value.name for value in body.input[2:]}
    return name not in carried and (maker is None or maker.op_type == "Constant")


def _scalar(number: object, dtype: type[np.generic]) -> Weight:
    return known("", np.asarray(number, dtype))


def _stacked(call: OnnxCall, parts: Sequence[Operand], axis: int) -> Operand:
    """Stack the results of the iterations along a new axis."""
    if not parts:
        raise UnsupportedError(
            "a loop of zero iterations would return empty tensors, which are not supported"
        )
    if all(isinstance(part, Weight) for part in parts):
        return known("", np.stack([p.read() for p in parts if isinstance(p, Weight)], axis))
    values = [call.as_value(part) for part in parts]
    return graphc.stack(values, normalize_axis(axis, values[0].type.rank + 1, "Loop"))


@rule("Scan")
def scan(call: OnnxCall) -> Sequence[Operand]:
    """Unroll a Scan: apply its body to each slice of the scanned operands."""
    body: onnx.GraphProto = call.required("body")
    count = call.required("num_scan_inputs")
    operands = [call.operand(i) for i in range(len(call.arguments))]
    carried, scanned = operands[: len(operands) - count], call.values[len(operands) - count :]
    axes = call.attribute("scan_input_axes", [0] * count)
    backwards = call.attribute("scan_input_directions", [0] * count)
    outputs = len(body.output) - len(carried)
    lengths = {v.shape[axis] for v, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise UnsupportedError(
            f"the scanned operands must have equal lengths, got {sorted(lengths)}"
        )
    (length,) = lengths
    check_turns(length)
    collected: list[list[Operand]] = [[] for _ in range(outputs)]
    names = [value.name for value in body.input]
    for turn in range(length):
        parts = [
            _at(v, axis, length - 1 - turn if back else turn)
            for v, axis, back in zip(scanned, axes, backwards, strict=True)
        ]
        found = _body(call, body, dict(zip(names, [*carried, *parts], strict=True)))
        carried = found[: len(carried)]
        for place, part in zip(collected, found[len(carried) :], strict=True):
            place.append(part)
    out_axes = call.attribute("scan_output_axes", [0] * outputs)
    turned = call.attribute("scan_output_directions", [0] * outputs)
    shown = [
        _stacked(call, parts[::-1] if back else parts, axis)
        for parts, axis, back in zip(collected, out_axes, turned, strict=True)
    ]
    return [*carried, *shown]


def _at(value: Value, axis: int, place: int) -> Value:
    axis = normalize_axis(axis, value.type.rank, "Scan")
    return graphc.slice(value, (*(slice(None),) * axis, place))
