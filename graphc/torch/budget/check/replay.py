"""An independent checker of torch plans that replays both graphs storage by storage.

Its inputs are the joint graph as torch traced it, the emitted forward and backward graph, and the
bytes of each node. It shares no code with the planner. The checker uses value numbering
(contents.py): every emitted node must compute the same as a node of the joint
graph, from the same contents. Both must return the same values, except that a gradient may be a
copy, and must be a copy if autograd would make one. A storage is live from its producer to its last
use, or to the end of the step if the caller receives it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch
from torch import fx

from graphc.byte_sizes import exact_bytes
from graphc.errors import TorchError
from graphc.torch.budget.check.autograd_rules import (
    Traced,
    kept_gradients,
    modified_inputs,
    new_contents,
    returned_by,
    why_copied,
    written,
)
from graphc.torch.budget.check.contents import (
    MOVES,
    Done,
    Numbers,
    Storage,
    Tree,
    fakes_in,
    tensors_in,
)
from graphc.torch.budget.check.copies import CopyError, Fetched, HostWalk
from graphc.torch.budget.check.graphs import (
    RANDOM_STATE,
    Fault,
    NodeBytes,
    Replay,
    StepGraphs,
    kind_of_copy,
)
from graphc.torch.budget.check.returned import dense_bytes, incoming, placeholders
from graphc.torch.budget.check.timeline import Timeline


def check(plan: StepGraphs, claimed_bytes: int) -> Replay:
    """Replay a plan with a claimed peak of `claimed_bytes`, and return its live ranges.

    Raises `TorchError` if the peak is higher or the graphs are wrong.
    """
    found = replay(plan)
    if found.peak.bytes > claimed_bytes:
        raise _wrong(
            plan,
            found.peak.node or "the forward/backward boundary",
            f"{exact_bytes(found.peak.bytes)} are live, but the plan claims at most "
            f"{exact_bytes(claimed_bytes)}",
        )
    return found


def replay(plan: StepGraphs) -> Replay:
    """Return the live ranges; raises `TorchError` if the graphs differ from the joint graph.

    If a plan is foreign, differences are listed in the result. Only graphs that cannot run raise.
    """
    numbers = Numbers()
    return _Emitted(plan, Traced(plan, numbers), numbers).replay()


def _wrong(plan: StepGraphs, where: fx.Node | str, what: str) -> TorchError:
    whole = "the graphs of the partitioner cannot run"
    if not plan.is_foreign:
        whole = "this plan is wrong because of a bug in graphc"
    return TorchError(f"{whole}: at {_name(where)}, {what}")


def _name(where: fx.Node | str) -> str:
    return where if isinstance(where, str) else where.name


class _Emitted:
    """A replay of the forward graph, and then of the backward graph with the saved values."""

    def __init__(self, plan: StepGraphs, joint: Traced, numbers: Numbers) -> None:
        self.plan, self.joint = plan, joint
        self.walk = HostWalk(numbers)
        self.line = Timeline()
        self.faults: list[Fault] = []
        self.spoiled: set[fx.Node] = set()
        """Nodes with wrong values, because of their own fault or that of an operand."""
        self.boundary = self._forward()
        self._backward()

    def _forward(self) -> int:
        """Replay the forward graph, and return the moment of the forward/backward boundary."""
        self._begin()
        self._through(self.plan.forward)
        returned = returned_by(self.plan.forward)
        self._leave(returned, "the end of the forward graph")
        outputs = self.plan.forward_outputs
        self._expect(returned[:outputs], 0, "the forward graph")
        boundary = len(self.line.moments)
        trees = [None if node is None else self._there(node) for node in returned]
        copied = new_contents(self.plan.joint, outputs)
        for index in copied:
            self.line.use(trees[index])
        self._copy_new_contents(trees)
        self.given = incoming(self.plan.joint, outputs, self.plan.leaves, self.plan.returned)
        self.line.moments.append((None, None, self.given.workspace))
        for index, tree in enumerate(trees):
            if index not in copied:
                self.line.use(tree)
        self.saved = trees[outputs:]
        self.returned = [tensor for tree in trees[:outputs] for tensor in tensors_in(tree)]
        self.line.held.update(
            tensor.storage
            for index, tree in enumerate(trees[:outputs])
            if index not in copied
            for tensor in tensors_in(tree)
        )
        self.versions = [tensor.storage.version for tensor in self.returned]
        return boundary

    def _copy_new_contents(self, trees: Sequence[Tree]) -> None:
        """Overwrite the inputs into which torch copies outputs when the forward graph returns."""
        for index, source in modified_inputs(self.plan.joint, self.plan.forward_outputs):
            (made,), (old,) = tensors_in(trees[index]), tensors_in(self.sources[source])
            if made.storage is not old.storage:
                old.storage.version += 1
                old.storage.writer = "the end of the forward pass"

    def _begin(self) -> None:
        sources = placeholders(self.plan.forward)
        if len(sources) != len(self.joint.sources):
            raise _wrong(
                self.plan,
                "the forward graph",
                f"the graph has {len(sources)} inputs, but the module has "
                f"{len(self.joint.sources)}",
            )
        self.sources = [
            self.walk.outside(node, "source", index) for index, node in enumerate(sources)
        ]
        self.walk.env.update(zip(sources, self.sources, strict=True))
        for tensor in tensors_in(tuple(self.sources)):
            self.line.holds(tensor.storage, -1, tensor.storage.fake)

    def _backward(self) -> None:
        taken = placeholders(self.plan.backward)
        tangents = [self._tangent(index) for index in range(len(self.joint.tangents))]
        if self.given.kept:
            whole = torch.empty(self.given.kept, dtype=torch.uint8, device="meta")
            storage = Storage(self.given.kept, "gradients of the caller", whole)
            self._make_at_boundary(storage, len(tangents), storage.bytes)
            self.line.held.add(storage)
        given = [*self.saved, *tangents]
        if len(taken) != len(given):
            raise _wrong(
                self.plan,
                "the backward graph",
                f"the graph has {len(taken)} inputs, but {len(given)} values are saved or are "
                "gradients",
            )
        self.walk.env = dict(zip(taken, given, strict=True))
        saved = returned_by(self.plan.forward)[self.plan.forward_outputs :]
        self.spoiled.update(t for t, s in zip(taken, saved, strict=False) if s in self.spoiled)
        self._through(self.plan.backward, may_copy=True)
        for node in taken:
            if not node.users:  # it is freed only when the graph returns
                self.line.use(self.walk.env[node])
        returned = returned_by(self.plan.backward)
        self._leave((), "the end of the backward graph")
        begin = self.plan.forward_outputs
        kept = kept_gradients(self.plan.joint, begin, self.plan.leaves)
        self._expect(returned, begin, "the backward graph", kept)
        released = self._copied(list(returned), kept)
        for node in released:
            if node is not None:
                self.line.held.update(t.storage for t in tensors_in(self.walk.env[node]))
        self._expect_kept(tangents)

    def _copied(
        self, returned: list[fx.Node | None], kept: dict[int, fx.Node]
    ) -> list[fx.Node | None]:
        """Add the copies that autograd makes of gradients, and return the others.

        Raises `TorchError` if the plan is not foreign, because it must contain these copies.
        """
        for index, variable in kept.items():
            node = returned[index]
            assert node is not None
            reason = why_copied(returned, index, variable)
            if reason is None:
                continue
            if not self.plan.is_foreign:
                raise _wrong(self.plan, node, reason)
            fake = variable.meta["val"]
            copy = Storage(dense_bytes(fake), f"the gradient of {variable.name}", fake)
            self.line.moments.append((None, None, 0))
            self.line.make(copy, len(self.line.moments) - 1, copy.bytes, 0)
            self.line.held.add(copy)
            self.line.use(self.walk.env[node])
            returned[index] = None
        return returned

    def _tangent(self, index: int) -> Tree:
        node = self.joint.tangents[index]
        tree = self.walk.outside(node, "tangent", index)
        for tensor in tensors_in(tree):
            size = self.given.made.get(node, dense_bytes(tensor.storage.fake))
            self._make_at_boundary(tensor.storage, index, size)
            if node not in self.given.made:
                self.line.held.add(tensor.storage)
        return tree

    def _make_at_boundary(self, storage: Storage, index: int, size: int) -> None:
        self.line.make(storage, self.boundary, size, index)
        self.line.last[storage] = self.boundary

    def _through(self, graph: fx.Graph, may_copy: bool = False) -> None:
        for node in graph.nodes:
            if node.op not in ("get_attr", "call_function"):
                continue
            for each in node.all_input_nodes:
                self._there(each, node)
            try:
                done = self.walk.do(node)
            except CopyError as fault:
                raise _wrong(self.plan, node, str(fault)) from None
            is_spoiled = not self.spoiled.isdisjoint(node.all_input_nodes)
            if done.computes is not None:
                self._note(done, self._original(done, may_copy, is_spoiled))
            elif isinstance(done, Fetched):
                self._note_copy(done)
            elif is_spoiled:
                self.spoiled.add(node)
            for each in (*node.all_input_nodes, node):
                self.line.use(self.walk.env[each])

    def _leave(self, returned: Sequence[fx.Node | None], where: str) -> None:
        """Check the copies that have not ended when a graph returns."""
        try:
            self.walk.leave([self._there(node) for node in returned if node is not None])
        except CopyError as fault:
            raise _wrong(self.plan, where, str(fault)) from None

    def _note_copy(self, done: Fetched) -> None:
        """Add a moment for the begin of a copy from the host, with the bytes of its source."""
        assert done.source is not None
        _, size, index = self.line.made.get(done.source, (-1, done.source.bytes, 0))
        self.line.moments.append((done.node, None, 0))
        for storage in done.makes:
            self.line.make(storage, len(self.line.moments) - 1, size, index)

    def _there(self, node: fx.Node, reader: fx.Node | str = "the return") -> Tree:
        if node not in self.walk.env:
            raise _wrong(self.plan, reader, f"{node.name} is read, but was not saved")
        return self.walk.env[node]

    def _original(self, done: Done, may_copy: bool, is_spoiled: bool) -> fx.Node | None:
        """Return the node of the joint graph with the same value number, or None for a copy.

        For a wrong value, return the node of the same name.
        """
        assert done.computes is not None
        found = self.joint.nodes.get(done.computes)
        if found is not None:
            return found
        if not is_spoiled:
            if may_copy and done.node.target in MOVES and done.overwritten is None:
                return None
            self._report(done.node, self._problem(done))
        self.spoiled.add(done.node)
        return self.joint.namesake(done.node)

    def _problem(self, done: Done) -> str:
        """Return the reason why a node computes no value of the module."""
        if done.overwritten is not None:
            (writer, *_) = (
                tensor.storage.writer
                for tensor in tensors_in(self.walk.env[done.overwritten])
                if tensor.version != tensor.storage.version
            )
            return f"{done.overwritten.name} is read after {writer} has overwritten it"
        if done.draws is not None and done.draws in self.joint.draws:
            return (
                "the random numbers differ, because they do not start from the state of the "
                "first draw"
            )
        return "the computed value is not a value of the module"

    def _report(self, where: fx.Node | str, problem: str, output: int | None = None) -> None:
        """Note a fault of a foreign plan; raise `TorchError` for one of graphc."""
        if not self.plan.is_foreign:
            raise _wrong(self.plan, where, problem)
        self.faults.append(Fault(_name(where), problem, output))

    def _note(self, done: Done, original: fx.Node | None) -> None:
        """Add a moment for a node that computes; views take neither time nor bytes."""
        if not done.makes and not done.written:
            return
        kind = kind_of_copy(done.node) if done.node.target in MOVES else None
        weight = (
            self.plan.copied_bytes.get(kind)
            if original is None
            else self.plan.node_bytes.get(original)
        ) or NodeBytes(0, ())
        now = len(self.line.moments)
        self.line.moments.append((done.node, original, weight.workspace))
        for each in done.node.all_input_nodes:
            for tensor in tensors_in(self.walk.env[each]):
                if tensor.storage in self.line.contents:
                    *_, readers = self.line.contents[tensor.storage][-1]
                    readers[now] = None
        for storage in done.written:
            fakes = fakes_in(done.node.meta.get("val"))
            self.line.holds(storage, now, next(fakes, storage.fake))
        if done.state is not None:
            self.line.make(done.state, now, done.state.bytes, RANDOM_STATE)
        sizes = weight.results or tuple(storage.bytes for storage in done.makes)
        for index, (storage, size) in enumerate(zip(done.makes, sizes, strict=False)):
            self.line.make(storage, now, size, index)

    def _expect(
        self,
        returned: Sequence[fx.Node | None],
        begin: int,
        where: str,
        kept: Collection[int] = (),
    ) -> None:
        """Report values that a graph returns and that differ from those of the joint graph.

        The first one is output `begin` of the joint graph. Outputs with an index in `kept` may be
        copies.
        """
        outputs = self.plan.forward_outputs
        wanted = self.joint.returns[begin:] if begin else self.joint.returns[:outputs]
        if len(returned) != len(wanted):
            raise _wrong(
                self.plan,
                where,
                f"{len(returned)} values are returned, but {len(wanted)} are expected",
            )
        for index, (node, content) in enumerate(zip(returned, wanted, strict=True)):
            if node is None and content is None:
                continue
            if node is None or content is None:
                found = "nothing" if node is None else node.name
                problem = f"output {index} is {found}, unlike that of the module"
                self._report(where, problem, begin + index)
                continue
            self._there(node, where)
            seen, elements = self.walk.seen(node), self.walk.numbers.elements
            is_copy = index in kept and elements(seen) == elements(content)
            if seen != content and not is_copy:
                problem = f"output {index} of {where} differs from that of the module"
                self._report(node, problem, begin + index)

    def _expect_kept(self, tangents: Sequence[Tree]) -> None:
        """Report outputs, tangents and sources of the caller that are overwritten.

        Sources may be written only as the joint graph writes them, such as buffers.
        """
        for tensor, version in zip(self.returned, self.versions, strict=True):
            if tensor.storage.version != version:
                self._report(tensor.storage.writer, "an output of the forward pass is overwritten")
        for tensor in tensors_in(tuple(tangents)):
            if tensor.storage.version:
                self._report(tensor.storage.writer, "a gradient of the caller is overwritten")
        for tree, wanted in zip(self.sources, self.joint.left, strict=True):
            if written(tree) != wanted:
                (tensor,) = tensors_in(tree)
                self._report(
                    tensor.storage.writer or "the forward graph",
                    f"{tensor.storage.name} has another final content than after the module",
                )

    def replay(self) -> Replay:
        """Return the live ranges of all storages, and the live bytes at every moment."""
        sources = (
            tuple(content for t in tensors_in(tree) for content in self.line.contents_of(t.storage))
            for tree in self.sources
        )
        moments, lives = self.line.moments_and_lives(self.plan.fixed_bytes)
        return Replay(moments, lives, tuple(sources), self.boundary, tuple(self.faults))
