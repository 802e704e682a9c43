"""Conversion of a joint graph into the steps of a planner's `Problem`.

Besides the nodes that compute, there are five kinds of auxiliary steps:

    random state, before each random op          a recomputation draws from it again
    new running statistics, before each norm     a recomputation does not produce them
      that updates them
    use of the old statistics, after such a      a recomputation does not read them
      norm, if they are not inputs of the graph
    return of the forward pass, if it modifies   torch copies the new contents, and frees them
      inputs
    forward/backward boundary                    produces the tangents, and other gradients that
                                                 the caller gives

Auxiliary steps are never recomputed, so each byte is counted in its own live range. Outputs of the
forward pass are live until the end of the step, because the caller may keep them. Tensors resident
before the step (parameters, buffers, inputs) are not values: their bytes are `fixed_bytes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import fx

from graphc.planner.problem import Problem, Run
from graphc.torch.budget.plan.in_place import may_overwrite
from graphc.torch.budget.trace.joint import Joint, JointStep, aten, is_random, runs_once
from graphc.torch.budget.trace.measure import bytes_alone

STATEFUL_NORMS = {
    aten._native_batch_norm_legit_functional.default: aten._native_batch_norm_legit.no_stats
}
"""Training batch norms, and the ops that recompute them without running statistics.

Such a norm reads running statistics only to update them.
"""

NEW_STATISTICS = 3
"""Index of the first output of these norms that is a new running statistic."""


@dataclass(frozen=True)
class Measured:
    """Measured cost of a node: seconds, workspace bytes, and the bytes of each result.

    `is_estimated` marks a node that cannot run alone; its seconds are those of copying the bytes
    that it reads and writes.
    """

    seconds: float
    workspace: int
    result_bytes: tuple[int, ...]
    is_estimated: bool = False


class TorchSteps:
    """The planner's steps of a joint graph, with the node of each step.

    `measured` has every node that computes. `fixed_bytes` are resident before and after the step.
    """

    def __init__(
        self,
        joint: Joint,
        measured: Mapping[fx.Node, Measured],
        fixed_bytes: int,
        in_place: bool = True,
    ) -> None:
        self.joint, self.measured, self.in_place = joint, measured, in_place
        self.nodes: list[fx.Node | None] = []
        """The node of each step; None for an auxiliary step."""
        self.state_of: dict[int, int] = {}
        """Maps each random step to the value of the random state that it reads."""
        self.bytes = list(joint.bytes)
        kept = joint.incoming.kept
        self.outer = (len(self.bytes),) if kept else ()
        """The value for the caller's gradients that are not tangents, if there are any."""
        self.bytes += [kept] if kept else []
        for node in joint.tangents:
            for value in joint.values[node]:
                self.bytes[value] = joint.incoming.made.get(node, bytes_alone(node.meta["val"]))
        self._cost: list[float] = []
        self._workspace: list[int] = []
        self._inputs: list[tuple[int, ...]] = []
        self._outputs: list[tuple[int, ...]] = []
        self._once: set[int] = set()
        for number, step in enumerate(joint.steps):
            if number == joint.boundary:
                self._add_boundary()
            self._add(step, measured[step.node])
        if joint.boundary == len(joint.steps):
            self._add_boundary()
        self.steps = Problem(
            cost=tuple(self._cost),
            workspace=tuple(self._workspace),
            inputs=tuple(self._inputs),
            outputs=tuple(self._outputs),
            overwrites=self._overwrites(),
            bytes=tuple(self.bytes),
            once=frozenset(self._once),
            live_out=self.held,
            runs=(Run(0, self._boundary, len(self.nodes)),),
            fixed_bytes=fixed_bytes,
        )

    @cached_property
    def boundary(self) -> int:
        """The step of the forward/backward boundary, where the forward pass returns."""
        return self._boundary

    def _append(
        self,
        node: fx.Node | None,
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        measured: Measured,
    ) -> None:
        self.nodes.append(node)
        self._inputs.append(inputs)
        self._outputs.append(outputs)
        self._cost.append(measured.seconds)
        self._workspace.append(measured.workspace)

    def _add(self, step: JointStep, measured: Measured) -> None:
        for value, size in zip(step.makes, measured.result_bytes, strict=True):
            self.bytes[value] = size
        there = self.joint.source_values
        reads = tuple(value for value in step.reads if value not in there)
        if is_random(step.node):
            reads = (*reads, self._add_state(step.node))
            self.state_of[len(self.nodes)] = reads[-1]
        makes = step.makes
        old: tuple[int, ...] = ()
        if step.node.target in STATEFUL_NORMS:
            statistics = self.joint.values[step.node][NEW_STATISTICS:]
            self._add_once(statistics)
            makes = tuple(value for value in makes if value not in statistics)
            old = tuple(value for value in self._old_statistics(step.node) if value not in there)
            reads = tuple(value for value in reads if value not in old)
        if self._must_run_once(step.node) or not self.returned.isdisjoint(makes):
            self._once.add(len(self.nodes))
        self._append(step.node, reads, makes, measured)
        if old:
            self._add_once((), old)

    def _old_statistics(self, node: fx.Node) -> set[int]:
        given = (each for each in node.args[3:5] if isinstance(each, fx.Node))
        return {value for each in given for value in self.joint.values[each]}

    def _add_state(self, node: fx.Node) -> int:
        value = len(self.bytes)
        self.bytes.append(random_state(device_of(node)).nbytes)
        self._add_once((value,))
        return value

    def _made(self, node: fx.Node | None) -> set[int]:
        """Return the values of a node that do not exist before the step."""
        return set() if node is None else {*self.joint.values[node]} - self.joint.source_values

    def _add_boundary(self) -> None:
        if self.joint.replacing:
            self._add_once((), tuple(sorted(self.joint.replacing)))
        self._boundary = len(self.nodes)
        tangents = self.joint.tangents
        given = dict.fromkeys(value for node in tangents for value in self.joint.values[node])
        self._add_once((*given, *self.outer), workspace=self.joint.incoming.workspace)

    def _add_once(
        self, makes: tuple[int, ...], reads: tuple[int, ...] = (), workspace: int = 0
    ) -> None:
        """Append an auxiliary step, which takes no time and is never recomputed."""
        self._once.add(len(self.nodes))
        self._append(None, reads, makes, Measured(0.0, workspace, ()))

    @cached_property
    def held(self) -> frozenset[int]:
        """Values live at the end: outputs of the forward pass, and gradients of the caller."""
        joint = self.joint
        made = joint.incoming.made
        given = [node for node in joint.tangents if node not in made or not node.users]
        held = {value for node in (*joint.outputs, *given) for value in self._made(node)}
        return frozenset(held - joint.replacing).union(self.outer)

    @cached_property
    def returned(self) -> frozenset[int]:
        """Values that the forward pass returns, and values that autograd or the caller makes."""
        tangents = {value for node in self.joint.tangents for value in self.joint.values[node]}
        return self.held | self.joint.replacing | tangents

    def _must_run_once(self, node: fx.Node) -> bool:
        if runs_once(node):
            return True
        # Mutated sources have other contents after the forward pass.
        changed = any(source in self.joint.mutated for source in self._read_through_views(node))
        return changed and node.target not in STATEFUL_NORMS

    def _read_through_views(self, node: fx.Node) -> set[fx.Node]:
        joint = self.joint
        return {joint.base[value] for each in node.all_input_nodes for value in joint.values[each]}

    def _overwrites(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        return tuple(self._overwritten(number) for number in range(len(self.nodes)))

    def _overwritten(self, number: int) -> tuple[tuple[int, int], ...]:
        """Return pairs of the result and an operand whose storage it may reuse."""
        node = self.nodes[number]
        if not self.in_place or node is None or len(self._outputs[number]) != 1:
            return ()
        (result,) = self._outputs[number]
        pairs = []
        for operand in may_overwrite(node):
            (value,) = self.joint.values[operand]
            is_free = value not in self.joint.source_values and value not in self.returned
            if (
                is_free
                and self.bytes[value] == self.bytes[result]
                and self._is_read_once(node, value)
            ):
                pairs.append((result, value))
        return tuple(pairs)

    def _is_read_once(self, node: fx.Node, value: int) -> bool:
        """Return whether exactly one operand uses the storage."""
        operands = [each for each in node.args if isinstance(each, fx.Node)]
        return sum(value in self.joint.values[each] for each in operands) == 1


def device_of(node: fx.Node) -> torch.device:
    """Return the device of a node's results."""
    for tensor in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        if isinstance(tensor, torch.Tensor):
            return tensor.device
    return torch.device("cpu")


def random_state(device: torch.device) -> torch.Tensor:
    """Return the state of the generator that random ops on this device use."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()
