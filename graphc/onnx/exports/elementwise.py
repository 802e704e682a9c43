"""Export of elementwise ops as equivalent ONNX nodes, or by their scalar expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from graphc.ir.expression import PREDICATES, Expression, Instruction, Operand, Result
from graphc.ir.graph import Node
from graphc.ir.types import DType, as_dtype, bool_, compute_dtype, float64
from graphc.onnx.emission import Emission, Emitted, element_type, exports
from graphc.onnx.exports.scalar import applied
from graphc.ops.elementwise import Elementwise

Typed = tuple[str, DType]
"""The name of a tensor and its dtype."""


@exports("relu")
def _relu(node: Node, on: Emission, x: str) -> str:
    return on("Relu", x)


@exports("relu6")
def _relu6(node: Node, on: Emission, x: str) -> str:
    dtype = node.output.type.dtype
    return on("Clip", x, on.number(0, dtype), on.number(6, dtype))


@exports("leaky_relu")
def _leaky_relu(node: Node, on: Emission, x: str) -> Emitted:
    if node.output.type.dtype == float64:  # ONNX attributes are float32
        return by_expression(node, on, x)
    return on("LeakyRelu", x, alpha=float(node.attributes.slope))


@exports("gelu", "gelu_tanh")
def _gelu(node: Node, on: Emission, x: str) -> Emitted:
    if node.output.type.dtype == float64:  # the definition of Gelu has float32 constants
        return by_expression(node, on, x)
    return on("Gelu", x, approximate="tanh" if node.op.name == "gelu_tanh" else "none")


@exports("power")
def _power(node: Node, on: Emission, x: str) -> str:
    return on("Pow", x, on.number(node.attributes.value, node.output.type.dtype))


@exports("cast")
def _cast(node: Node, on: Emission, x: str) -> str:
    have, want = node.inputs[0].type.dtype, as_dtype(node.attributes.dtype)
    return on.cast(x, have, want)


@exports("bitcast")
def _bitcast(node: Node, on: Emission, x: str) -> str:
    on.needs(26)
    return on("BitCast", x, to=element_type(node.output.type.dtype))


@exports("copy", "stop_gradient")
def _copy(node: Node, on: Emission, x: str) -> str:
    return on("Identity", x)


def by_expression(node: Node, on: Emission, *names: str) -> str:
    """Emit any elementwise op by the scalar expression from which its kernels are generated.

    Expressions of several steps compute 16-bit floats in float32, as the kernels do.
    """
    op, want = node.op, node.output.type.dtype
    assert isinstance(op, Elementwise), f"{op.name} has no expression"
    dtypes = tuple(value.type.dtype for value in node.inputs)
    program = op.scalar_program(node.attributes, dtypes)
    (expression,) = program.expressions.values()
    floats = {dtype for dtype in dtypes if dtype.kind == "float"}
    if len(expression.instructions) == 1 and len(floats) == 1:
        wide = dict(zip(dtypes, dtypes, strict=True))
    else:
        wide = {dtype: _widest(dtypes, dtype) for dtype in (*dtypes, want)}
    known = {
        given: (on.cast(name, dtype, wide[dtype]), wide[dtype])
        for given, name, dtype in zip(program.inputs, names, dtypes, strict=True)
    }
    name, dtype = _Expressed(on, known, want).value(expression)
    return on.cast(name, dtype, want)


def _widest(dtypes: Sequence[DType], dtype: DType) -> DType:
    """Return the dtype in which a float expression is computed: the widest of its operands.

    It is never a 16-bit dtype.
    """
    if dtype.kind != "float":
        return dtype
    floats = [compute_dtype(each) for each in dtypes if each.kind == "float"]
    return max(floats, key=lambda each: each.itemsize, default=compute_dtype(dtype))


class _Expressed:
    """An emitter of ONNX nodes for one scalar expression, on named operands."""

    def __init__(self, on: Emission, known: Mapping[str, Typed], dtype: DType) -> None:
        self.on, self.known, self.dtype = on, known, dtype
        self.results: list[Typed] = []

    def value(self, expression: Expression) -> Typed:
        for instruction in expression.instructions:
            self.results.append(self.computed(instruction))
        found = self.find(expression.value)
        if found is None:
            assert isinstance(expression.value, float)
            return self.on.number(expression.value, self.dtype), self.dtype
        name, dtype = found
        if not expression.instructions:  # an unmodified input needs a separate name
            name = self.on("Identity", name)
        return name, dtype

    def find(self, operand: Operand) -> Typed | None:
        """Return the name and dtype of an operand of the expression; None if it is a number."""
        if isinstance(operand, Result):
            return self.results[operand.index]
        return self.known[operand] if isinstance(operand, str) else None

    def computed(self, instruction: Instruction) -> Typed:
        function, on = instruction.function, self.on
        found = [self.find(operand) for operand in instruction.operands]
        values = found[1:] if function == "where" else found
        dtype = next((each[1] for each in values if each is not None), self.dtype)
        names = [
            each[0] if each is not None else on.number(float(operand), dtype)  # type: ignore[arg-type]
            for each, operand in zip(found, instruction.operands, strict=True)
        ]
        name = applied(on, function, names, dtype)
        return name, bool_ if function in PREDICATES else dtype
