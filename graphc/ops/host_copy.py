"""Copies of values to host memory and back, which run beside the nodes of a step.

A copy consists of two nodes, like a collective. `copy_to_host` or `copy_to_device` starts it, and
an `Arrival` waits for it:

    begun = begin_copy_to_host(x)          h = finish_copy(begun)
    begun = begin_copy_to_device(h)        y = finish_copy(begun)

Nodes between the two overlap with the copy. The arrival reads the source of the copy, which
therefore keeps its bytes until then. `y` has the numbers of `x` and its strides, so a copy is one
contiguous piece of bytes and changes no bit of a step. A value on the host may be fetched several
times.

Planners insert copies after differentiation, at the steps that they choose.
"""

from __future__ import annotations

from typing import Any

from graphc.errors import GraphError
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import ANY_AXES, Array, Op, Recorder
from graphc.ir.types import TensorType
from graphc.ops.collective import Arrival


class HostCopy(Op):
    """Base: starts a copy of x; only an `Arrival` may use its output."""

    strided_axes = {"x": ANY_AXES, "y": ANY_AXES}
    any_strides = True
    native_16_bit = True
    instead_of_gradient = {
        "x": "instead insert copies after differentiation, into the graph of the training step"
    }

    def infer(self, attributes: Any, x: TensorType) -> TensorType:
        return x

    def kernel(self, record: Recorder, node: Node, x: Array, y: Array) -> None:
        record(record.lane.begins(node, x, y))


class CopyToHost(HostCopy):
    """y = x, in host memory."""

    name, inputs = "copy_to_host", ("x",)
    copies_to = "host"


class CopyToDevice(HostCopy):
    """y = x, in device memory; x is in host memory."""

    name, inputs = "copy_to_device", ("x",)
    copies_to = "device"


def begin_copy_to_host(x: Value) -> Value:
    """Start a copy of x, of any shape and dtype, to the host, and return the unfinished result."""
    return apply(CopyToHost, as_value(CopyToHost.name, x)).output


def begin_copy_to_device(x: Value) -> Value:
    """Start a copy of x, a value on the host, to the device, and return the unfinished result.

    Raises `GraphError` if x is not on the host.
    """
    if not as_value(CopyToDevice.name, x).on_host:
        raise GraphError(f"copy_to_device needs a value on the host, got {x!r}; copy it there")
    return apply(CopyToDevice, x).output


def finish_copy(begun: Value) -> Value:
    """Wait for a copy, given its unfinished result, and return the result.

    Raises `GraphError` if `begun` is not the output of a copy.
    """
    node = as_value("finish_copy", begun).node
    if node is None or not node.op.copies_to:
        raise GraphError(
            f"finish_copy needs the result of begin_copy_to_host or begin_copy_to_device, got "
            f"{begun!r}"
        )
    return apply(Arrival, begun, node.inputs[0]).output
