"""Copies of values to host memory and back, which run beside the nodes of a step.

A copy consists of two nodes, like a collective. `copy_to_host` or `copy_to_device` starts it, and
an `Arrival` waits for it:

    begun = begin_copy_to_host(x)          h = finish_copy(begun)
    begun = begin_copy_to_device(h)        y = finish_copy(begun)

Nodes between the two overlap with the copy. The arrival reads the source of the copy, which
therefore keeps its bytes until then. `y` has the numbers of `x` and its strides, so a copy is one
contiguous piece of bytes and changes no bit of a step. A value on the host may be fetched several
times.

A state on the host changes in five nodes. An update replaces the copy of the state on the device,
and a write-back replaces the state:

    begun = begin_copy_to_device(state)    copy = finish_copy(begun)
    new = ... an update that overwrites `copy` ...
    begun = begin_write_back(new, state)   finish_write_back(begun)

Planners insert copies after differentiation, at the steps that they choose.
"""

from __future__ import annotations

from typing import Any

from graphc.errors import GraphError, ShapeError
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


class WriteBack(HostCopy):
    """y = x, in place of a state on the host. Only a `WrittenBack` may use y."""

    name, inputs = "write_back", ("x", "state")
    strided_axes = {"x": ANY_AXES, "state": ANY_AXES, "y": ANY_AXES}
    must_overwrite = {"y": "state"}
    copies_to = "host"
    instead_of_gradient = dict.fromkeys(("x", "state"), HostCopy.instead_of_gradient["x"])

    def infer(self, attributes: Any, x: TensorType, state: TensorType) -> TensorType:  # type: ignore[override]
        if x != state:
            raise ShapeError(f"the new content of a state must be {state}, got {x}")
        return state

    def kernel(self, record: Recorder, node: Node, x: Array, state: Array, y: Array) -> None:  # type: ignore[override]
        record(record.lane.begins(node, x, y))


class WrittenBack(Arrival):
    """y = x, once the write-back that computes x is done; `reads` stay live until then."""

    name = "written_back"
    may_overwrite = {}
    must_overwrite = {"y": "x"}


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


def begin_write_back(x: Value, state: Value) -> Value:
    """Start a copy of x, the new content of a state on the host, and return the unfinished result.

    Raises `GraphError` if the state is not on the host, and `ShapeError` if x has another type.
    """
    if not as_value(WriteBack.name, state).on_host:
        raise GraphError(f"write_back needs a state on the host, got {state!r}")
    return apply(WriteBack, as_value(WriteBack.name, x), state).output


def finish_write_back(begun: Value) -> Value:
    """Wait for a write-back, given its unfinished result, and return the new state.

    Raises `GraphError` if `begun` is not the output of a write-back.
    """
    node = as_value("finish_write_back", begun).node
    if node is None or not isinstance(node.op, WriteBack):
        raise GraphError(f"finish_write_back needs the result of begin_write_back, got {begun!r}")
    return apply(WrittenBack, begun, node.inputs[0]).output


def finish_copy(begun: Value) -> Value:
    """Wait for a copy, given its unfinished result, and return the result.

    Raises `GraphError` if `begun` is not the output of a copy.
    """
    node = as_value("finish_copy", begun).node
    if node is None or not node.op.copies_to or node.op.has_effect:
        raise GraphError(
            f"finish_copy needs the result of begin_copy_to_host or begin_copy_to_device, got "
            f"{begun!r}"
        )
    return apply(Arrival, begun, node.inputs[0]).output
