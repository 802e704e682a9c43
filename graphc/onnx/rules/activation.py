"""Activation functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import graphc
from graphc.ir.graph import Value
from graphc.onnx.calls import Call
from graphc.onnx.rules import rule

PLAIN: Mapping[str, Callable[[Value], Value]] = {
    "Relu": graphc.relu,
    "Sigmoid": graphc.sigmoid,
    "Tanh": graphc.tanh,
}


@rule(*PLAIN)
def plain(call: Call) -> Value:
    """An activation without attributes."""
    return PLAIN[call.node.op_type](call.value(0))
