"""Cross entropy with class labels: a line is a row of logits."""

from __future__ import annotations

from graphc.codegen.lines.program import Along, Lines, Numbers, Reduce
from graphc.codegen.lines.reductions import PEAK
from graphc.codegen.lines.softmax import TOTAL
from graphc.codegen.node_calls import NodeCalls, Scratch
from graphc.codegen.rules import kernels_of, programs_of
from graphc.codegen.text.access import parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import (
    Operand,
    Places,
    collapse,
    counter,
    decompose,
    index_type,
    offset,
    on_frame,
    operand,
)
from graphc.codegen.text.scalar import arithmetic_dtype, literal
from graphc.ir.graph import Node, Value
from graphc.ir.types import TensorType, int64


@programs_of("softmax_cross_entropy")
def _cross_entropy(node: Node, places: Places) -> NodeCalls:
    """Return a program for the loss of each row, then one for the mean of the losses. A label out
    of range selects no logit, which counts as 0.
    """
    logits, labels = node.inputs
    loss, probabilities = node.outputs
    rows = logits.shape[0]
    wide = arithmetic_dtype(logits.type.dtype)
    row_loss = Operand("row_loss", wide, (1, 0), Scratch(0))
    by_row = Lines(
        logits.shape,
        (1,),
        (
            operand("x", logits, places[logits], logits.shape),
            on_frame("label", labels, places[labels], (rows, 1), logits.shape),
            counter("place", int64, 1, 2),
        ),
        (row_loss, operand("probabilities", probabilities, places[probabilities], logits.shape)),
        (PEAK, Reduce("Sum", {**TOTAL.of, "chosen": "where(place == label, x - peak, 0)"})),
        per_line={"row_loss": "log(total) - chosen"},
        per_element={"probabilities": "exp(x - peak) / total"},
    )
    mean = Lines(
        (rows,),
        (0,),
        (row_loss.on((1,)),),
        (operand("loss", loss, places[loss], (rows,)),),
        (Reduce("Sum", {"total": "row_loss"}),),
        per_line={"loss": "total / count"},
        constants={"count": float(rows)},
    )
    name = node.op.name
    programs = Along(name, by_row, whole=True), Along(name, mean, whole=True)
    return NodeCalls(programs, (TensorType((rows,), wide),))


def _row_operands(
    table: Value, labels: Value, weights: tuple[Value, ...], places: Places
) -> tuple[Operand, ...]:
    """Return the operands of rows besides logits: the label of a row, and the index and weight of a
    column."""
    shape, own = table.shape, (table.shape[0], 1)
    return (
        on_frame("label", labels, places[labels], own, shape),
        counter("place", int64, 1, 2),
        *(operand("weight", value, places[value], shape) for value in weights),
    )


def _unless_ignored(ignored: tuple[int, ...], expression: str) -> str:
    """Return the expression, changed to be 0 for a row whose label is ignored."""
    return f"where(label == {ignored[0]}, 0, {expression})" if ignored else expression


@programs_of("cross_entropy")
def _row_losses(node: Node, places: Places) -> NodeCalls:
    """Return a program with a loss for each row. A label out of range selects no logit, which
    counts as 0."""
    logits, labels, *weights = node.inputs
    losses, probabilities = node.outputs
    a, (rows, classes) = node.attributes, logits.shape
    sums = {**TOTAL.of, "chosen": "where(place == label, x - peak, 0)"}
    loss = "(log(total) - chosen) * kept"
    if weights:
        sums["factor"] = "where(place == label, weight, 0)"
        loss += " * factor"
    if a.smoothing:
        sums["spread"] = "(x - peak) * weight" if weights else "x - peak"
        sums |= {"all": "weight"} if weights else {}
        every = "all" if weights else "classes"
        loss += f" + ({every} * log(total) - spread) * share"
    constants = {"kept": 1 - a.smoothing, "share": a.smoothing / classes, "classes": classes}
    program = Lines(
        logits.shape,
        (1,),
        (
            operand("x", logits, places[logits], logits.shape),
            *_row_operands(logits, labels, tuple(weights), places),
        ),
        (
            on_frame("losses", losses, places[losses], (rows, 1), logits.shape),
            operand("probabilities", probabilities, places[probabilities], logits.shape),
        ),
        (PEAK, Reduce("Sum", sums)),
        per_line={"losses": _unless_ignored(a.ignored, loss)},
        per_element={"probabilities": "exp(x - peak) / total"},
        constants=constants,
    )
    return NodeCalls((Along(node.op.name, program, whole=True),))


@programs_of("cross_entropy_gradient")
def _row_gradients(node: Node, places: Places) -> NodeCalls:
    """Return a program that computes the factors of each row, then the gradients of its
    elements."""
    table, labels, dlosses, *weights = node.inputs
    dlogits = node.output
    a, (rows, classes) = node.attributes, table.shape
    sums = {"factor": "where(place == label, weight, 0)"} if weights else {}
    spread = "0"
    if a.smoothing:
        sums |= {"all": "weight"} if weights else {}
        spread = "weight * share" if weights else "share"
    own = "factor * kept" if weights else "kept"
    every = ("all * share" if weights else "classes * share") if a.smoothing else "0"
    found = f"(p * (own + every) - where(place == label, own, 0) - {spread}) * dloss"
    shape = table.shape
    program = Lines(
        shape,
        (1,),
        (
            operand("p", table, places[table], shape),
            *_row_operands(table, labels, tuple(weights), places),
            on_frame("dloss", dlosses, places[dlosses], (rows, 1), shape),
        ),
        (operand("dlogits", dlogits, places[dlogits], shape),),
        (*((Reduce("Sum", sums),) if sums else ()), Numbers({"own": own, "every": every})),
        per_element={"dlogits": _unless_ignored(a.ignored, found)},
        constants={"kept": 1 - a.smoothing, "share": a.smoothing / classes, "classes": classes},
    )
    return NodeCalls((Along(node.op.name, program, whole=True),))


@programs_of("cross_entropy_with_slopes")
def _row_losses_and_slopes(node: Node, places: Places) -> NodeCalls:
    """Return a program with a loss for each row, and the gradients of its elements.

    A label out of range selects no logit, which counts as 0.
    """
    logits, labels = node.inputs
    losses, dlogits = node.outputs
    a, (rows, classes) = node.attributes, logits.shape
    sums = {**TOTAL.of, "chosen": "where(place == label, x - peak, 0)"}
    loss = "(log(total) - chosen) * kept"
    slope, factor = "exp(x - peak) * factor - where(place == label, kept, 0)", "kept / total"
    if a.smoothing:
        sums["spread"] = "x - peak"
        loss += " + (classes * log(total) - spread) * share"
        slope, factor = f"{slope} - share", "(kept + classes * share) / total"
    program = Lines(
        logits.shape,
        (1,),
        (
            operand("x", logits, places[logits], logits.shape),
            *_row_operands(logits, labels, (), places),
        ),
        (
            on_frame("losses", losses, places[losses], (rows, 1), logits.shape),
            operand("dlogits", dlogits, places[dlogits], logits.shape),
        ),
        (PEAK, Reduce("Sum", sums), Numbers({"factor": factor})),
        per_line={"losses": _unless_ignored(a.ignored, loss)},
        per_element={"dlogits": _unless_ignored(a.ignored, slope)},
        constants={"kept": 1 - a.smoothing, "share": a.smoothing / classes, "classes": classes},
    )
    return NodeCalls((Along(node.op.name, program, whole=True),))


@kernels_of("label_weight")
def _label_weights(node: Node, places: Places) -> NodeCalls:
    """Return a launch that looks up the weight of each label; labels out of range are clamped."""
    (labels, weights), y, ignored = node.inputs, node.output, node.attributes.ignored
    label = operand("labels", labels, places[labels], labels.shape)
    target = operand("y", y, places[y], y.shape)
    table = Operand("weights", weights.type.dtype, (1,), weights)
    elements, last = labels.type.elements, weights.shape[0] - 1
    kind = index_type(labels.shape, [label, target])
    extents, (index, to) = collapse(labels.shape, [label, target])
    split, indices = decompose("item", extents, "i")
    counts = f"number != {ignored[0]}LL" if ignored else "true"
    zero = literal(0.0, arithmetic_dtype(y.type.dtype))
    body = [
        *split,
        f"const long long number = labels[{offset(indices, index.strides)}];",
        f"const long long row = number < 0 ? 0 : number < {last} ? number : {last};",
        f"narrow({counts} ? widen(weights[row]) : {zero}, y[{offset(indices, to.strides)}]);",
    ]
    given = parameters([index, table], [to])
    kernel = grid_kernel(node.op.name, elements, kind, given, body)
    return NodeCalls((over_grid(kernel, (labels, weights, y), elements),))
