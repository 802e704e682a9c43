"""Data parallelism: a step of one of several ranks that train one network on different batches.

The loss of the step is the mean over ranks. So each rank divides its loss by their number before
differentiation, and gradients are sums over ranks. They are reduced in buckets: concatenations of
gradients of one dtype, in the order in which the backward pass computes them. If a gradient can be
computed in place in its bucket, `allocation.zero_copy` puts it there, and filling the bucket copies
nothing.

Sums are in rank order whatever a bucket contains (see `runtime.ranks.sums`). So neither buckets nor
the plan as a whole change a bit of a gradient.

Let B be the bytes of gradients, α the latency and β the bandwidth of collectives
(`plans.exchange_times`), and b the bytes of a bucket. Overlap with the backward pass cannot hide
the last bucket and one latency per bucket: b / β + α B / b. This is least for b = √(α β B).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass

from graphc.devices.links import Link
from graphc.ir import builder
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Node, State, Value
from graphc.ops.collective import AllGather, AllReduce, Arrival, Broadcast, all_reduce
from graphc.ops.concat import concat, split
from graphc.ops.elementwise import scale
from graphc.ops.shape import reshape


@dataclass(frozen=True)
class DataParallel:
    """Data-parallel training on `ranks` ranks: gradients are summed over all ranks.

    With one rank nothing is changed. `link` has the latency and the bandwidth of an all-reduce.
    """

    ranks: int
    link: Link
    shards_states: bool = False
    """True if parameters and moments are sharded, see `graphc.passes.sharded_states`."""
    syncs_norms: bool = False
    """True if batch norms use statistics of all ranks, see `graphc.passes.synchronized_norms`."""

    def share_of(self, loss: Value, parts: int) -> Value:
        """Divide a loss by the ranks and by `parts`, the micro-batches of each rank.

        The loss of a step is the mean over all micro-batches of all ranks, so it is the sum of
        these shares.
        """
        return scale(loss, 1 / (self.ranks * parts)) if self.ranks * parts > 1 else loss

    def mean(self, value: Value) -> Value:
        """Return the mean of `value` over ranks."""
        return value if self.ranks == 1 else all_reduce(scale(value, 1 / self.ranks), self.ranks)

    def summed(self, values: Sequence[Value]) -> list[Value]:
        """Return the sum of each value over ranks, reduced in buckets."""
        if self.ranks == 1:
            return list(values)
        distinct = list(dict.fromkeys(values))
        found: dict[Value, Value] = {}
        for numbers in self.buckets(distinct, [value.type.dtype for value in distinct]):
            bucket = [distinct[number] for number in numbers]
            found.update(zip(bucket, _exchanged(bucket, self.ranks), strict=True))
        return [found[value] for value in values]

    def total_of_parts(self, value: Value) -> Value:
        """Sum `value` over ranks; each rank has computed it from its part of the gradients."""
        return all_reduce(value, self.ranks) if self.shards_states else value

    def averaged(self, effects: Sequence[Node]) -> list[Node]:
        """Return updates of states that are not parameters, such as running statistics.

        Each operand is replaced by its mean over all ranks, so all ranks compute the same states.
        Operands that are equal on all ranks already are not averaged.
        """
        if self.ranks == 1:
            return list(effects)
        operands = [value for node in effects for value in node.inputs]
        same = _same_on_all(operands)
        read = dict.fromkeys(
            value
            for value in operands
            if not _is_same(value, same) and value.type.dtype.kind == "float"
        )
        scaled = {value: scale(value, 1 / self.ranks) for value in read}
        means = dict(zip(read, self.summed(list(scaled.values())), strict=True))
        return [_reading(node, means) for node in effects]

    def _bucket_bytes(self, total: int) -> float:
        return math.sqrt(self.link.latency * self.link.bytes_per_second * total)

    def buckets(self, values: Sequence[Value], kinds: Sequence[Hashable]) -> list[list[int]]:
        """Group values into buckets, in the order in which the values are computed.

        A bucket is a list of indices of `values`, all with an equal entry of `kinds`.
        """
        most = self._bucket_bytes(sum(value.type.bytes for value in values))
        buckets: list[list[int]] = []
        filling: dict[Hashable, tuple[list[int], int]] = {}
        for number in sorted(range(len(values)), key=lambda number: _made(values[number])):
            kind, size = kinds[number], values[number].type.bytes
            bucket, held = filling.get(kind, ([], 0))
            if not bucket or held + size > most:
                bucket, held = [], 0
                buckets.append(bucket)
            bucket.append(number)
            filling[kind] = bucket, held + size
        return buckets


def _made(value: Value) -> tuple[int, int]:
    """Return a key that orders values as they were created, sources first."""
    return (value.node.serial, value.index) if value.node is not None else (-1, 0)


def _same_on_all(values: Sequence[Value]) -> set[Node]:
    """Return the ancestors of `values` that compute the same result on every rank."""
    found: set[Node] = set()
    for node in ancestors(values):
        operands = node.inputs[:1] if isinstance(node.op, Arrival) else node.inputs
        is_given_to_all = isinstance(node.op, AllReduce | AllGather | Broadcast)
        if is_given_to_all or all(_is_same(value, found) for value in operands):
            found.add(node)
    return found


def _is_same(value: Value, same: Set[Node]) -> bool:
    """Return True if a value is the same on every rank; `same` has the nodes for which this holds.

    Float states that steps change are averaged, so they are equal on all ranks. Integer states,
    such as seeds, differ between ranks unless they are constants.
    """
    if value.node is not None:
        return value.node in same
    is_float = value.type.dtype.kind == "float"
    return isinstance(value, State) and (is_float or value.role == "constant")


def _exchanged(bucket: Sequence[Value], ranks: int) -> list[Value]:
    """Return the sum over ranks of each value in a bucket, by one all-reduce."""
    if len(bucket) == 1:
        return [all_reduce(bucket[0], ranks)]
    whole = concat([reshape(value, (value.type.elements,)) for value in bucket])
    parts = split(all_reduce(whole, ranks), [value.type.elements for value in bucket])
    return [reshape(part, value.shape) for part, value in zip(parts, bucket, strict=True)]


def _reading(node: Node, means: dict[Value, Value]) -> Node:
    operands = [means.get(value, value) for value in node.inputs]
    with builder.in_phase(node.phase, node.scope):
        return builder.apply(type(node.op), *operands, attributes=node.attributes)
