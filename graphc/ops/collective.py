"""Collectives: communication between the ranks of a program, each with its own values.

A collective consists of two nodes. The first starts the communication, and the runtime continues
with the next nodes. The second, `Arrival`, waits for the result. Nodes between the two overlap with
the communication. Copies between device and host (`host_copy`) are waited for in the same way. The
operand, which is still being sent, and the result are live in between, so no other value shares
their bytes.

Sums are computed in the order of ranks, see `graphc.runtime.ranks.sums`. The bits of a result do
not depend on how many elements are summed at once, nor on which rank sums them.

Gradients of collectives are those of the sum of all ranks' losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import numpy as np

from graphc.errors import DTypeError, OptionError, ShapeError, whole_number
from graphc.ir.attributes import Whole
from graphc.ir.builder import apply, as_value
from graphc.ir.graph import Node, Value
from graphc.ir.op import ANY_AXES, Array, Op, Recorder
from graphc.ir.types import TensorType

MOST_RANKS = 2**16
"""The most ranks of a program."""

Ranks = Annotated[int, Whole(1, MOST_RANKS)]


@dataclass(frozen=True, slots=True)
class RanksAttributes:
    """The number of ranks that take part."""

    ranks: Ranks


@dataclass(frozen=True, slots=True)
class RootAttributes:
    """The number of ranks that take part, and the rank whose value all of them receive."""

    ranks: Ranks
    root: Annotated[int, Whole(0, MOST_RANKS - 1)]


class Collective(Op):
    """Base: starts a collective between all ranks; only an `Arrival` may use its output."""

    needs_contiguous = ("x",)
    native_16_bit = True
    sends = True
    flops_per_element = 1
    passes: ClassVar[float]
    """Bytes sent by a rank per byte of the larger of input and output, in the limit of many
    ranks."""

    def sent_bytes(self, node: Node) -> int:
        """Return the bytes that each rank sends; it receives equally many."""
        ranks = node.attributes.ranks
        return int(self.passes * self.longest(node) * (ranks - 1) / ranks)

    def longest(self, node: Node) -> int:
        """Return the bytes of the larger of input and output."""
        return max(node.inputs[0].type.bytes, node.output.type.bytes)

    def kernel(self, record: Recorder, node: Node, x: Array, y: Array) -> None:
        record(record.lane.begins(node, x, y))


def _summed(name: str, x: TensorType) -> None:
    if x.dtype.kind != "float":
        raise DTypeError(f"{name} needs floats, got {x}; convert with graphc.cast")


def _along_first(name: str, x: TensorType) -> int:
    if not x.rank:
        raise ShapeError(f"{name} needs a first axis, got a scalar; reshape it to (1,)")
    return x.shape[0]


class AllReduce(Collective):
    """y = the sum of x over all ranks."""

    name, inputs = "all_reduce", ("x",)
    attributes = RanksAttributes
    may_overwrite = {"y": ("x",)}
    passes = 2.0

    def infer(self, attributes: RanksAttributes, x: TensorType) -> TensorType:
        _summed(self.name, x)
        return x

    def gradient(self, node: Node, dy: Value) -> Value:
        return all_reduce(dy, node.attributes.ranks)


class ReduceScatter(Collective):
    """y = this rank's slice, along the first axis, of the sum of x over all ranks."""

    name, inputs = "reduce_scatter", ("x",)
    attributes = RanksAttributes
    passes = 1.0

    def infer(self, attributes: RanksAttributes, x: TensorType) -> TensorType:
        _summed(self.name, x)
        length, ranks = _along_first(self.name, x), attributes.ranks
        if length % ranks:
            raise ShapeError(
                f"the first axis must be divisible by {ranks} ranks, got {x}; pad it to "
                f"{math.ceil(length / ranks) * ranks}"
            )
        return x.with_shape((length // ranks, *x.shape[1:]))

    def gradient(self, node: Node, dy: Value) -> Value:
        return all_gather(dy, node.attributes.ranks)


class AllGather(Collective):
    """y = the concatenation of x of all ranks along the first axis."""

    name, inputs = "all_gather", ("x",)
    attributes = RanksAttributes
    joins = True
    passes = 1.0

    def infer(self, attributes: RanksAttributes, x: TensorType) -> TensorType:
        length = _along_first(self.name, x)
        return x.with_shape((length * attributes.ranks, *x.shape[1:]))

    def gradient(self, node: Node, dy: Value) -> Value:
        return reduce_scatter(dy, node.attributes.ranks)


class Broadcast(Collective):
    """y = x of the rank `root`."""

    name, inputs = "broadcast", ("x",)
    attributes = RootAttributes
    may_overwrite = {"y": ("x",)}
    passes = 1.0
    instead_of_gradient = {
        "x": "instead add the all_reduce of a value that is 0 on all ranks but one"
    }

    def infer(self, attributes: RootAttributes, x: TensorType) -> TensorType:
        if attributes.root >= attributes.ranks:
            raise OptionError(
                f"root must be a rank below {attributes.ranks}, got {attributes.root}"
            )
        return x


class Arrival(Op):
    """y = x, once the collective or copy that computes x is done; `reads` stay live until then.

    It does not wait if x is not the output of a collective or copy. The result of a copy always
    stays in place, with its strides.
    """

    name, inputs = "arrival", ("x", "*reads")
    may_overwrite = {"y": ("x",)}
    needs_contiguous = ("x",)
    native_16_bit = True
    awaits = True

    def infer(self, attributes: Any, x: TensorType, *reads: TensorType) -> TensorType:
        return x

    def gradient_x(self, node: Node, dy: Value) -> Value:
        return dy

    def gradient_reads(self, node: Node) -> tuple[None, ...]:
        return (None,) * (len(node.inputs) - 1)

    def free_axes(self, node: Node, name: str) -> int:
        return super().free_axes(node, name) if node.host_copy is None else ANY_AXES

    def kernel(self, record: Recorder, node: Node, x: Array, *reads: Array, y: Array) -> None:
        begun = node.awaited
        if begun is not None:
            record(record.lane.ends(begun))
        if x.ctypes.data != y.ctypes.data:
            record(np.copyto, y, x)


def all_reduce(x: Value, ranks: int) -> Value:
    """Return the sum over `ranks` ranks of float x of any shape, on every rank.

    Raises `DTypeError` if x is not a float.
    """
    return _exchange(AllReduce, x, RanksAttributes(_count(AllReduce, ranks)))


def reduce_scatter(x: Value, ranks: int) -> Value:
    """Sum float x (n, ...) over all ranks; rank r gets slice r of the sum, (n / ranks, ...).

    Raises `ShapeError` if n is not a multiple of `ranks`, and `DTypeError` if x is not a float.
    """
    return _exchange(ReduceScatter, x, RanksAttributes(_count(ReduceScatter, ranks)))


def all_gather(x: Value, ranks: int) -> Value:
    """Concatenate x (n, ...) of any dtype over all ranks along axis 0, to (ranks · n, ...)."""
    return _exchange(AllGather, x, RanksAttributes(_count(AllGather, ranks)))


def broadcast(x: Value, ranks: int, root: int = 0) -> Value:
    """Return x of rank `root`, of any shape and dtype, on every rank. It has no gradient."""
    count = _count(Broadcast, ranks)
    attributes = RootAttributes(count, whole_number("broadcast: root", root, least=0))
    return _exchange(Broadcast, x, attributes)


def _count(op: type[Collective], ranks: int) -> int:
    return whole_number(f"{op.name}: ranks", ranks, most=MOST_RANKS)


def _exchange(op: type[Collective], x: Value, attributes: Any) -> Value:
    """Start a collective and wait for it.

    The operand stays live until the result arrives, unless the collective may overwrite it.
    """
    x = as_value(op.name, x)
    held = () if op.may_overwrite else (x,)
    return apply(Arrival, apply(op, x, attributes=attributes).output, *held).output
