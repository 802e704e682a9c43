"""Sharded parameters and moments: each of N ranks stores and updates one N-th of them.

This implements the first two stages of ZeRO (Rajbhandari et al., 2020) inside the plan. Parameters
whose gradients are reduced together form one row. The state of a rank is its part of the row, and
the same part of every moment. A step does the following:

    before the first read:  gather all ranks' parts into the row; parameters are views of it
    after the backward:     reduce-scatter the gradients of a row: a rank gets those of its part
    then:                   each rank updates its part

This sends as many bytes as an all-reduce. If the only use of a parameter is its cast to 16 bits,
the cast is gathered. That halves the bytes, and no rank has whole float32 masters. Gradients of a
row die when they are sent, a row dies at its last use.

An update sees a part instead of a parameter, so it must be elementwise. Sums over ranks are in rank
order, so parameters equal those of unsharded training bit for bit. Only a norm of all gradients is
summed in another order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import count, filterfalse

from graphc.ir import builder
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Graph, Initial, Node, State, Value
from graphc.ir.rewrite import Rewriter
from graphc.ir.shards import Member, Shard
from graphc.ir.types import DType, TensorType
from graphc.ops.choice import Cast, cast
from graphc.ops.collective import all_gather, reduce_scatter
from graphc.ops.concat import concat, split
from graphc.ops.shape import full, reshape
from graphc.optim import Updater
from graphc.passes.data_parallel import DataParallel


@dataclass(frozen=True)
class Row:
    """A row: parameters that ranks shard together, concatenated.

    `state` is this rank's part of the row, and `gradient` its part of the row's gradients.
    """

    parameters: tuple[State, ...]
    state: State
    gradient: Value
    updater: Updater


@dataclass(frozen=True)
class ShardedStates:
    """All rows of a training step, which `gathered` uses to replace its parameters."""

    rows: list[Row] = field(default_factory=list)
    gathered_as: Mapping[State, DType] = field(default_factory=dict)
    """Parameter → the dtype in which its values are gathered from all ranks."""

    @classmethod
    def of(
        cls,
        parallel: DataParallel,
        parameters: Sequence[State],
        gradients: Sequence[Value],
        updater: Updater,
        outputs: Iterable[Value],
        taken: Set[str],
    ) -> ShardedStates:
        """Group parameters into rows, and create the states for this rank's parts.

        `gradients` are those of this rank's batch, `outputs` the other values that the step
        computes. New states get names that are not in `taken`.
        """
        found = cls([], _dtypes_read(parameters, [*gradients, *outputs]))
        of_name = getattr(updater, "of", lambda name: updater)  # only groups depend on the name
        updaters = [of_name(state.name) for state in parameters]
        kinds = [
            (state.type.dtype, value.type.dtype, found.gathered_as[state], id(updater))
            for state, value, updater in zip(parameters, gradients, updaters, strict=True)
        ]
        names = filterfalse(taken.__contains__, map("shard{}".format, count()))
        for name, bucket in zip(names, parallel.buckets(gradients, kinds), strict=False):
            bucket.sort(key=lambda i: -_power_of_two(gradients[i]))
            members = tuple(parameters[i] for i in bucket)
            state = _shard(name, members, parallel.ranks)
            with builder.in_phase("gradient"):
                gradient = _scattered([gradients[i] for i in bucket], state, parallel.ranks)
            found.rows.append(Row(members, state, gradient, updaters[bucket[0]]))
        return found

    def gathered(self, graph: Graph) -> Graph:
        """Return the graph with gathered values in place of parameters."""
        rewriter = Rewriter(graph)
        with builder.in_phase("update"):
            rows = sorted(self.rows, key=lambda row: _first_read(graph, row.parameters))
            whole = {state: value for row in rows for state, value in self._gathered(row)}
        added = ancestors(list(whole.values()))
        for node in added:
            rewriter.add(node)
        rewriter.stand([*whole], [*whole.values()])
        for node in graph.nodes:
            if _reads_narrow(node, self.gathered_as):
                rewriter.stand(node.outputs, [whole[_state_of(node.inputs[0])]])
            else:
                rewriter.put(node, rewriter.moved(node))
        return rewriter.result()

    def _gathered(self, row: Row) -> Iterator[tuple[State, Value]]:
        """Yield each parameter of a row with the value gathered from all ranks."""
        shard = _shard_of(row.state)
        part = cast(row.state, self.gathered_as[row.parameters[0]])
        values = _split(all_gather(part, shard.ranks), shard)
        for state, value in zip(row.parameters, values, strict=False):
            yield state, reshape(value, state.shape)


def _dtypes_read(parameters: Sequence[State], values: Sequence[Value]) -> Mapping[State, DType]:
    """Return the dtype in which each parameter can be gathered.

    It is the narrower dtype to which all nodes that `values` need cast the parameter, or else the
    parameter's own dtype.
    """
    read: dict[Value, set[DType]] = {state: set() for state in parameters}
    for node in ancestors(values):
        for value in node.inputs:
            if value in read:
                is_cast = isinstance(node.op, Cast)
                read[value].add((node.output if is_cast else value).type.dtype)
    found = {}
    for state in parameters:
        (dtype,) = read[state] if len(read[state]) == 1 else {state.type.dtype}
        found[state] = dtype if dtype.itemsize < state.type.dtype.itemsize else state.type.dtype
    return found


def _first_read(graph: Graph, parameters: Iterable[State]) -> int:
    """Return the first step that reads one of the parameters of a row.

    Rows are gathered in this order, because links carry one after another.
    """
    return min((step for state in parameters for step in graph.uses[state][:1]), default=0)


def _power_of_two(value: Value) -> int:
    """Return the largest power of two that divides the number of elements.

    Members of a row are sorted by this number, descending. So each member begins at a multiple of
    its own number, and is aligned as well as its rows.
    """
    return value.type.elements & -value.type.elements


def _reads_narrow(node: Node, gathered_as: Mapping[State, DType]) -> bool:
    """Return True if a node casts a parameter to the dtype in which the parameter is gathered."""
    return isinstance(node.op, Cast) and any(
        isinstance(value, State) and gathered_as.get(value, value.type.dtype) != value.type.dtype
        for value in node.inputs
    )


def _shard(name: str, members: Sequence[State], ranks: int) -> State:
    initials = []
    for state in members:
        assert isinstance(state.initial, Initial), "constants are not trained"
        initials.append(Member(state.name, state.shape, state.initial))
    shard = Shard(ranks, tuple(initials))
    type = TensorType((shard.elements,), members[0].type.dtype)
    return State(type, name=name, initial=shard, role="parameter", trainable=True)


def _shard_of(state: State) -> Shard:
    assert isinstance(state.initial, Shard)
    return state.initial


def _state_of(value: Value) -> State:
    assert isinstance(value, State)
    return value


def _scattered(gradients: Sequence[Value], state: State, ranks: int) -> Value:
    """Concatenate gradients, sum them over all ranks, and return this rank's part of the sum."""
    parts = [reshape(value, (value.type.elements,)) for value in gradients]
    padding = _shard_of(state).padding
    if padding:
        parts.append(full((padding,), 0.0, parts[0].type.dtype))
    return reduce_scatter(concat(parts) if len(parts) > 1 else parts[0], ranks)


def _split(row: Value, shard: Shard) -> Sequence[Value]:
    """Return the members of a gathered row as vectors, followed by the padding if there is any."""
    sizes = [member.elements for member in shard.members]
    sizes += [shard.padding] if shard.padding else []
    return split(row, sizes) if len(sizes) > 1 else [row]
