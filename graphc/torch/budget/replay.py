"""An independent checker of torch plans that replays both graphs storage by storage.

Its inputs are the joint graph as torch traced it, the emitted forward and backward graph, and the
bytes of each node. It shares no code with the planner. The checker uses value numbering
(`graphc.torch.budget.contents`): every emitted node must compute the same as a node of the joint
graph, from the same contents. Both must return the same values, except that a gradient may be a
copy, and must be a copy if autograd would make one. A storage is live from its producer to its last
use, or to the end of the step if the caller receives it.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import fx

from graphc.errors import TorchError
from graphc.ir.types import exact_bytes
from graphc.torch.budget.autograd_rules import (
    dense_bytes,
    gradients_at_turn,
    is_tangent,
    kept_gradients,
    new_contents,
    placeholders,
    returned_by,
    why_copied,
)
from graphc.torch.budget.checker_input import Plan, Weight, kind_of_copy
from graphc.torch.budget.contents import (
    MOVES,
    Done,
    Numbers,
    Storage,
    Tree,
    Walk,
    fakes_in,
    tensors_in,
)
from graphc.torch.budget.lives import RANDOM_STATE, Content, Life, Moment, Replay


def check(plan: Plan, claimed_bytes: int) -> Replay:
    """Replay a plan with a claimed peak of `claimed_bytes`, and return its live ranges.

    Raises `TorchError` if the peak is higher or the graphs are wrong.
    """
    found = replay(plan)
    if found.peak.bytes > claimed_bytes:
        raise _wrong(
            found.peak.node or "the forward/backward boundary",
            f"{exact_bytes(found.peak.bytes)} are live, but the plan claims at most "
            f"{exact_bytes(claimed_bytes)}",
        )
    return found


def replay(plan: Plan) -> Replay:
    """Return the live ranges; raises `TorchError` if the graphs differ from the joint graph."""
    numbers = Numbers()
    return _Emitted(plan, _Joint(plan, numbers), numbers).replay()


def _wrong(where: fx.Node | str, what: str) -> TorchError:
    name = where if isinstance(where, str) else where.name
    return TorchError(f"this plan is wrong because of a bug in graphc: at {name}, {what}")


class _Joint:
    """Value numbers of the joint graph: computations, returned values and written sources."""

    def __init__(self, plan: Plan, numbers: Numbers) -> None:
        walk = Walk(numbers, is_traced=True)
        given = placeholders(plan.joint)
        self.sources = [node for node in given if not is_tangent(node)]
        self.tangents = [node for node in given if is_tangent(node)]
        for place, node in enumerate(self.sources):
            walk.env[node] = walk.outside(node, "source", place)
        for place, node in enumerate(self.tangents):
            walk.env[node] = walk.outside(node, "tangent", place)
        self.nodes: dict[int, fx.Node] = {}
        self.draws: set[int | None] = set()
        for node in plan.joint.nodes:
            if node.op in ("get_attr", "call_function"):
                done = walk.do(node)
                if done.computes is not None:
                    self.nodes.setdefault(done.computes, node)
                    self.draws.add(done.draws)
        self.returns = [
            walk.seen(node) if isinstance(node, fx.Node) else None
            for node in returned_by(plan.joint)
        ]
        self.left = [_written(walk.env[node]) for node in self.sources]


def _written(tree: Tree) -> list[int]:
    """Return the numbers of the writes into the storages of a value."""
    return [tensor.storage.written for tensor in tensors_in(tree)]


class _Emitted:
    """A replay of the forward graph, and then of the backward graph with the saved values."""

    def __init__(self, plan: Plan, joint: _Joint, numbers: Numbers) -> None:
        self.plan, self.joint = plan, joint
        self.walk = Walk(numbers)
        self.moments: list[tuple[fx.Node | None, fx.Node | None, int]] = []
        """Per moment: the emitted node, its node in the joint graph, and its workspace."""
        self.made: dict[Storage, tuple[int, int, int]] = {}
        """Per storage: the moment of its production, its bytes, and its result index."""
        self.last: dict[Storage, int] = {}
        """Per storage: the moment of its last use."""
        self.contents: dict[Storage, list[tuple[int, torch.Tensor, dict[int, None]]]] = {}
        """Per storage: its successive contents, each with its first moment and its uses."""
        self.held: set[Storage] = set()
        """Storages that are live until the end."""
        self.turn = self._forward_and_turn()
        self._backward()

    def _forward_and_turn(self) -> int:
        """Replay the forward graph, and return the moment of the forward/backward boundary."""
        self._begin()
        self._through(self.plan.forward)
        returned = returned_by(self.plan.forward)
        outputs = self.plan.forward_outputs
        self._expect(returned[:outputs], self.joint.returns[:outputs], "the forward graph")
        turn = len(self.moments)
        trees = [None if node is None else self._there(node) for node in returned]
        copied = new_contents(self.plan.joint, outputs)
        for place in copied:
            self._touch(trees[place])
        self.given = gradients_at_turn(
            self.plan.joint, outputs, self.plan.leaves, self.plan.returned
        )
        self.moments.append((None, None, self.given.workspace))
        for place, tree in enumerate(trees):
            if place not in copied:
                self._touch(tree)
        self.saved = trees[outputs:]
        self.returned = [tensor for tree in trees[:outputs] for tensor in tensors_in(tree)]
        self.held.update(
            tensor.storage
            for place, tree in enumerate(trees[:outputs])
            if place not in copied
            for tensor in tensors_in(tree)
        )
        self.versions = [tensor.storage.version for tensor in self.returned]
        return turn

    def _begin(self) -> None:
        sources = placeholders(self.plan.forward)
        if len(sources) != len(self.joint.sources):
            raise _wrong(
                "the forward graph",
                f"the graph has {len(sources)} inputs, but the module has "
                f"{len(self.joint.sources)}",
            )
        self.sources = [
            self.walk.outside(node, "source", place) for place, node in enumerate(sources)
        ]
        self.walk.env.update(zip(sources, self.sources, strict=True))
        for tensor in tensors_in(tuple(self.sources)):
            self._holds(tensor.storage, -1, tensor.storage.fake)

    def _backward(self) -> None:
        taken = placeholders(self.plan.backward)
        tangents = [self._tangent(place) for place in range(len(self.joint.tangents))]
        if self.given.kept:
            whole = torch.empty(self.given.kept, dtype=torch.uint8, device="meta")
            storage = Storage(self.given.kept, "gradients of the caller", whole)
            self._make_at_turn(storage, len(tangents), storage.bytes)
            self.held.add(storage)
        given = [*self.saved, *tangents]
        if len(taken) != len(given):
            raise _wrong(
                "the backward graph",
                f"the graph has {len(taken)} inputs, but {len(given)} values are saved or are "
                "gradients",
            )
        self.walk.env = dict(zip(taken, given, strict=True))
        self._through(self.plan.backward, may_copy=True)
        for node in taken:
            if not node.users:  # it is freed only when the graph returns
                self._touch(self.walk.env[node])
        returned = returned_by(self.plan.backward)
        begin = self.plan.forward_outputs
        kept = kept_gradients(self.plan.joint, begin, self.plan.leaves)
        self._expect(returned, self.joint.returns[begin:], "the backward graph", kept)
        for place, variable in kept.items():
            reason = why_copied(returned, place, variable)
            if reason is not None:
                raise _wrong(returned[place], reason)
        for node in returned:
            if node is not None:
                self.held.update(t.storage for t in tensors_in(self.walk.env[node]))
        self._expect_kept(tangents)
        if self.given.at_end:
            self.moments.append((None, None, self.given.at_end))

    def _tangent(self, place: int) -> Tree:
        node = self.joint.tangents[place]
        tree = self.walk.outside(node, "tangent", place)
        for tensor in tensors_in(tree):
            size = self.given.made.get(node, dense_bytes(tensor.storage.fake))
            self._make_at_turn(tensor.storage, place, size)
            if node not in self.given.made:
                self.held.add(tensor.storage)
        return tree

    def _make_at_turn(self, storage: Storage, place: int, size: int) -> None:
        self._make(storage, self.turn, size, place)
        self.last[storage] = self.turn

    def _through(self, graph: fx.Graph, may_copy: bool = False) -> None:
        for node in graph.nodes:
            if node.op not in ("get_attr", "call_function"):
                continue
            for each in node.all_input_nodes:
                self._there(each, node)
            done = self.walk.do(node)
            if done.computes is not None:
                self._note(done, self._original(done, may_copy))
            for each in (*node.all_input_nodes, node):
                self._touch(self.walk.env[each])

    def _there(self, node: fx.Node, reader: fx.Node | str = "the return") -> Tree:
        if node not in self.walk.env:
            raise _wrong(reader, f"{node.name} is read, but was not saved")
        return self.walk.env[node]

    def _touch(self, tree: Tree) -> None:
        for tensor in tensors_in(tree):
            self.last[tensor.storage] = max(0, len(self.moments) - 1)

    def _original(self, done: Done, may_copy: bool) -> fx.Node | None:
        """Return the node of the joint graph with the same value number, or None for a copy."""
        found = None if done.computes is None else self.joint.nodes.get(done.computes)
        if found is not None:
            return found
        if may_copy and done.node.target in MOVES and done.overwritten is None:
            return None
        if done.overwritten is not None:
            (writer, *_) = (
                tensor.storage.writer
                for tensor in tensors_in(self.walk.env[done.overwritten])
                if tensor.version != tensor.storage.version
            )
            raise _wrong(
                done.node, f"{done.overwritten.name} is read after {writer} has overwritten it"
            )
        if done.draws is not None and done.draws in self.joint.draws:
            raise _wrong(
                done.node,
                "the random numbers differ, because they do not start from the state of the "
                "first draw",
            )
        raise _wrong(done.node, "the computed value is not a value of the module")

    def _note(self, done: Done, original: fx.Node | None) -> None:
        """Add a moment for a node that computes; views take neither time nor bytes."""
        if not done.makes and not done.written:
            return
        weight = (
            self.plan.copies.get(kind_of_copy(done.node))
            if original is None
            else self.plan.weights.get(original)
        ) or Weight(0, ())
        now = len(self.moments)
        self.moments.append((done.node, original, weight.workspace))
        for each in done.node.all_input_nodes:
            for tensor in tensors_in(self.walk.env[each]):
                if tensor.storage in self.contents:
                    *_, readers = self.contents[tensor.storage][-1]
                    readers[now] = None
        for storage in done.written:
            fakes = fakes_in(done.node.meta.get("val"))
            self._holds(storage, now, next(fakes, storage.fake))
        if done.state is not None:
            self._make(done.state, now, done.state.bytes, RANDOM_STATE)
        sizes = weight.results or tuple(storage.bytes for storage in done.makes)
        for place, (storage, size) in enumerate(zip(done.makes, sizes, strict=False)):
            self._make(storage, now, size, place)

    def _make(self, storage: Storage, now: int, size: int, place: int) -> None:
        self.made[storage] = (now, size, place)
        self._holds(storage, now, storage.fake)

    def _holds(self, storage: Storage, now: int, fake: torch.Tensor) -> None:
        self.contents.setdefault(storage, []).append((now, fake, {}))

    def _expect(
        self,
        returned: Sequence[fx.Node | None],
        wanted: Sequence[Any],
        where: str,
        kept: Collection[int] = (),
    ) -> None:
        """Raise `TorchError` if a graph returns other values than the joint graph.

        Outputs with an index in `kept` may be copies.
        """
        if len(returned) != len(wanted):
            raise _wrong(
                where, f"{len(returned)} values are returned, but {len(wanted)} are expected"
            )
        for place, (node, content) in enumerate(zip(returned, wanted, strict=True)):
            if node is None and content is None:
                continue
            if node is None or content is None:
                found = "nothing" if node is None else node.name
                raise _wrong(where, f"output {place} is {found}, unlike that of the module")
            self._there(node, where)
            seen, elements = self.walk.seen(node), self.walk.numbers.elements
            is_copy = place in kept and elements(seen) == elements(content)
            if seen != content and not is_copy:
                raise _wrong(node, f"output {place} of {where} differs from that of the module")

    def _expect_kept(self, tangents: Sequence[Tree]) -> None:
        """Raise `TorchError` if outputs, tangents or sources of the caller are overwritten.

        Sources may be written only as the joint graph writes them, such as buffers.
        """
        for tensor, version in zip(self.returned, self.versions, strict=True):
            if tensor.storage.version != version:
                raise _wrong(tensor.storage.writer, "an output of the forward pass is overwritten")
        for tensor in tensors_in(tuple(tangents)):
            if tensor.storage.version:
                raise _wrong(tensor.storage.writer, "a gradient of the caller is overwritten")
        for tree, wanted in zip(self.sources, self.joint.left, strict=True):
            if _written(tree) != wanted:
                (tensor,) = tensors_in(tree)
                raise _wrong(
                    tensor.storage.writer or "the forward graph",
                    f"{tensor.storage.name} has another final content than after the module",
                )

    def replay(self) -> Replay:
        """Return the live ranges of all storages, and the live bytes at every moment."""
        end = len(self.moments)
        lives = [
            Life(
                size,
                first,
                self._end(storage, end),
                place,
                self._held_by(storage),
                storage in self.held,
            )
            for storage, (first, size, place) in self.made.items()
        ]
        change, made = [0] * (end + 1), [0] * end
        for life in lives:
            change[life.first] += life.bytes
            change[life.last] -= life.bytes
            made[life.first] += life.bytes
        levels = itertools.accumulate(change[:-1], initial=self.plan.fixed_bytes)
        next(levels)
        moments = (
            Moment(node, original, level + workspace, here, workspace)
            for (node, original, workspace), level, here in zip(
                self.moments, levels, made, strict=True
            )
        )
        sources = (
            tuple(content for t in tensors_in(tree) for content in self._held_by(t.storage))
            for tree in self.sources
        )
        return Replay(tuple(moments), tuple(lives), tuple(sources), self.turn)

    def _held_by(self, storage: Storage) -> tuple[Content, ...]:
        found = self.contents[storage]
        return tuple(Content(now, fake, tuple(readers)) for now, fake, readers in found)

    def _end(self, storage: Storage, end: int) -> int:
        return end if storage in self.held else self.last[storage] + 1
