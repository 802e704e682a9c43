"""Bodies of operators that ONNX defines as functions of other operators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import defs, helper

from graphc.ir.types import TensorType

MASKING = ("Attention", "FlexAttention")
"""Operators whose function body applies softmax to scores of -inf at masked elements, in some cases
in entire rows."""

MASKED = "graphc.masked"
"""The domain by which softmax in these bodies is marked. It is imported with zeros in rows that are
entirely -inf, for which ONNX's softmax has no gradient."""


@dataclass(frozen=True)
class Body:
    """The body of an operator that ONNX defines as a function of other operators."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    nodes: Sequence[onnx.NodeProto]
    opset: int


def body_of(node: onnx.NodeProto, types: Sequence[TensorType | None], opset: int) -> Body | None:
    """Return the function body of a node's operator for operands of these types, or None."""
    schema = _schema(node, opset)
    if schema is None:
        return None
    function = _function(schema, node, types, opset)
    if function is None:
        return None
    nodes = [_with_attributes(inner, node, schema) for inner in function.node]
    if node.op_type in MASKING:
        for inner in nodes:
            if inner.op_type == "Softmax":
                inner.domain = MASKED
    versions = [o.version for o in function.opset_import if o.domain in ("", "ai.onnx")]
    return Body(function.input, function.output, nodes, max(versions, default=opset))


def has_body(node: onnx.NodeProto, opset: int) -> bool:
    """Return True if a node's operator has a function body for some operand types."""
    schema = _schema(node, opset)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def _schema(node: onnx.NodeProto, opset: int) -> Any:
    """Return the schema of a node's operator in this opset version, or else the newest.

    Returns None if ONNX has none.
    """
    for version in (opset, defs.onnx_opset_version()):
        try:
            return defs.get_schema(node.op_type, version, node.domain)
        except defs.SchemaError:
            continue
    return None


def _function(
    schema: Any, node: onnx.NodeProto, types: Sequence[TensorType | None], opset: int
) -> onnx.FunctionProto | None:
    if schema.has_function:
        body: onnx.FunctionProto = schema.function_body
        return body
    if not schema.has_context_dependent_function:
        return None
    versions = [v for v in schema.context_dependent_function_opset_versions if v <= opset]
    version = max(versions, default=min(schema.context_dependent_function_opset_versions))
    told = [
        (helper.make_tensor_type_proto(0, None) if t is None else _proto(t)).SerializeToString()
        for t in types
    ]
    text = schema.get_context_dependent_function_with_opset_version(
        version, node.SerializeToString(), told
    )
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function


def _proto(type: TensorType) -> onnx.TypeProto:
    number = helper.np_dtype_to_tensor_dtype(type.dtype.numpy)
    return helper.make_tensor_type_proto(number, type.shape)


def _with_attributes(
    inner: onnx.NodeProto, outer: onnx.NodeProto, schema: defs.OpSchema
) -> onnx.NodeProto:
    """Return a body node whose attribute references are replaced by values.

    The values are attributes of the outer node, or their defaults in the schema.
    """
    if not any(a.ref_attr_name for a in inner.attribute) and not _has_body(inner):
        return inner
    given = {a.name: a for a in outer.attribute}
    made = onnx.NodeProto()
    made.CopyFrom(inner)
    _resolve(made, given, schema)
    return made


def _has_body(node: onnx.NodeProto) -> bool:
    return any(a.HasField("g") for a in node.attribute)


def _resolve(
    node: onnx.NodeProto, given: dict[str, onnx.AttributeProto], schema: defs.OpSchema
) -> None:
    attributes = list(node.attribute)
    del node.attribute[:]
    for attribute in attributes:
        if attribute.ref_attr_name:
            found = given.get(attribute.ref_attr_name)
            if found is None:
                default = schema.attributes[attribute.ref_attr_name].default_value
                found = default if default.name else None
            if found is not None:
                bound = node.attribute.add()
                bound.CopyFrom(found)
                bound.name = attribute.name
            continue
        if attribute.HasField("g"):
            for inner in attribute.g.node:
                _resolve(inner, given, schema)
        node.attribute.add().CopyFrom(attribute)
