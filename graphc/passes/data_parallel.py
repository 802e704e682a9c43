"""The step of one of several ranks that train the same network, each on a batch of its own.

The loss of the step is the mean over ranks, so each rank's part of it is divided by their number
before it is differentiated, and gradients are sums. They are summed in buckets: gradients of one
dtype, in the order in which the backward pass makes them, side by side in one value. Where a
gradient can be computed in its place there, `allocation.zero_copy` puts it there, and filling a
bucket copies nothing.

Sums are in the order of ranks whatever a bucket holds (see `runtime.ranks.sums`), so buckets, and
the plan as a whole, change no bit of a gradient.

With B bytes of gradients, exchanges of latency α and bandwidth β (`plans.exchange_times`), and
buckets of b bytes, what cannot be hidden behind the backward pass is the last bucket and a latency
each: b / β + α B / b, which is least for b = √(α β B).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence, Set
from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Node, State, Value, ancestors
from graphc.ir.links import Link
from graphc.ops.collective import AllGather, AllReduce, Arrival, Broadcast, all_reduce
from graphc.ops.concat import concat, split
from graphc.ops.elementwise import scale
from graphc.ops.shape import reshape


@dataclass(frozen=True)
class DataParallel:
    """How the ranks of a program come to the same gradients; one rank has nothing to do. `link` has
    the latency and the bandwidth of an all-reduce between them."""

    ranks: int
    link: Link
    shards_states: bool = False
    """Whether parameters and moments are shared out, see `graphc.passes.sharded_states`."""
    syncs_norms: bool = False
    """Whether batch norms are over all ranks, see `graphc.passes.synchronized_norms`."""

    def share_of(self, loss: Value, parts: int) -> Value:
        """A rank's part of the step's loss, which is the mean over ranks and `parts`."""
        return scale(loss, 1 / (self.ranks * parts)) if self.ranks * parts > 1 else loss

    def mean(self, value: Value) -> Value:
        """The mean over ranks."""
        return value if self.ranks == 1 else all_reduce(scale(value, 1 / self.ranks), self.ranks)

    def summed(self, values: Sequence[Value]) -> list[Value]:
        """The sum over ranks of each value, exchanged in buckets."""
        if self.ranks == 1:
            return list(values)
        distinct = list(dict.fromkeys(values))
        found: dict[Value, Value] = {}
        for numbers in self.buckets(distinct, [value.type.dtype for value in distinct]):
            bucket = [distinct[number] for number in numbers]
            found.update(zip(bucket, _exchanged(bucket, self.ranks), strict=True))
        return [found[value] for value in values]

    def total_of_parts(self, value: Value) -> Value:
        """The sum over ranks of what each computes of its part of the gradients."""
        return all_reduce(value, self.ranks) if self.shards_states else value

    def averaged(self, effects: Sequence[Node]) -> list[Node]:
        """Updates of states that are no parameters, such as running statistics, with the mean over
        ranks of what they read: then all ranks have the same states. What all ranks have already
        stays as it is."""
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
        """The numbers of the values in the order in which these are computed, in buckets of one of
        their `kinds` each."""
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
    """When a value is computed; one that no node computes is there at once."""
    return (value.node.serial, value.index) if value.node is not None else (-1, 0)


def _same_on_all(values: Sequence[Value]) -> set[Node]:
    """Of the nodes that the values need, those that compute the same on all ranks."""
    found: set[Node] = set()
    for node in ancestors(values):
        operands = node.inputs[:1] if isinstance(node.op, Arrival) else node.inputs
        is_given_to_all = isinstance(node.op, AllReduce | AllGather | Broadcast)
        if is_given_to_all or all(_is_same(value, found) for value in operands):
            found.add(node)
    return found


def _is_same(value: Value, same: Set[Node]) -> bool:
    """Whether all ranks have the same, by the nodes of which that is known. Of states that change
    those are averaged that hold floats; of integers, such as seeds, each rank has its own."""
    if value.node is not None:
        return value.node in same
    is_float = value.type.dtype.kind == "float"
    return isinstance(value, State) and (is_float or value.role == "constant")


def _exchanged(bucket: Sequence[Value], ranks: int) -> list[Value]:
    """The sums over ranks of the values of a bucket."""
    if len(bucket) == 1:
        return [all_reduce(bucket[0], ranks)]
    whole = concat([reshape(value, (value.type.elements,)) for value in bucket])
    parts = split(all_reduce(whole, ranks), [value.type.elements for value in bucket])
    return [reshape(part, value.shape) for part, value in zip(parts, bucket, strict=True)]


def _reading(node: Node, means: dict[Value, Value]) -> Node:
    operands = [means.get(value, value) for value in node.inputs]
    with builder.in_phase(node.phase, node.scope):
        return builder.apply(type(node.op), *operands, attributes=node.attributes)
