"""Layer-major orders of unrolled recurrent networks, by strongly connected components.

A network unrolled over time is written time step by time step, and its backward pass follows that
order in reverse. All layers then accumulate their parameter gradients at once, over the whole
backward pass. In layer-major order, each layer runs over all time steps before the next one. Only
one layer then has unfinished gradients. Instead, the values passed from layer to layer are saved
for all time steps; these are small beside the gradients if layers are wide. This loop interchange
is legal if each layer reads only from the layers below it.

Layers are derived from the graph. Backward steps that read the same parameter belong together, and
so do groups that read from each other. These groups are the strongly connected components of the
steps with one further vertex per parameter (`components`). A parameter that is read once forms no
layer. Layers that share a parameter are one layer: for example, with tied input and output
embeddings.

Backward steps run layer by layer in topological order, and inside a layer in the given order. Other
steps that a layer needs run when it needs them. There are two ways to place the rest. With
recomputation, few bytes are live while a layer runs. Then these steps run as soon as they are
ready:

    a step from which no layer is reachable        a parameter's gradient, its sum, its update
    a step that frees at least the bytes it makes  the values passed to the next layer

Without recomputation, the live bytes peak at the forward/backward boundary. A sum of gradients
there would add to the peak, while its operands reuse the bytes of forward values. So these steps
wait until all layers have run, and then follow one update after another.

After ordering the layers, `as_late_as_needed` may delay forward steps until a gradient needs them.
An example is the output of each time step, which is wide if there are many classes or words and is
then never saved. Without recomputation, the order with the lower peak is chosen. With
recomputation, planners also try the delayed order if it lowers the peak.

Forward steps are ordered by the last backward step that needs them, those needed last first. This
order is topological, since a step is needed at least as late as its successors.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Sequence

from graphc.planner.order.precedence import Precedence


def components(
    predecessors: Sequence[Iterable[int]], groups: Iterable[Collection[int]]
) -> list[list[int]]:
    """Return the strongly connected components of vertices 0, 1, ..., in topological order.

    Edges lead from each of `predecessors[v]` to v. The vertices of a group are in one component.
    Ties in the order are broken by the least vertex.
    """
    import networkx  # slow to import, and most graphs share no parameter

    graph: networkx.DiGraph[int] = networkx.DiGraph()
    graph.add_nodes_from(range(len(predecessors)))
    graph.add_edges_from((first, v) for v, firsts in enumerate(predecessors) for first in firsts)
    for hub, group in enumerate(groups, len(predecessors)):
        graph.add_edges_from((hub, vertex) for vertex in group)
        graph.add_edges_from((vertex, hub) for vertex in group)
    condensed = networkx.condensation(graph)
    members = {
        number: sorted(v for v in condensed.nodes[number]["members"] if v < len(predecessors))
        for number in condensed
    }
    ordered = networkx.lexicographical_topological_sort(condensed, key=lambda n: members[n][:1])
    return [members[number] for number in ordered if members[number]]


def layer_by_layer(problem: Precedence, shared: Iterable[int], at_once: bool) -> list[int] | None:
    """Return a layer-major order for the parameters `shared`; None if no layer is recurrent.

    With `at_once`, gradients of parameters are summed as soon as possible, else after all layers.
    O(n log n) for n steps with a bounded number of consumers each.
    """
    steps = problem.steps
    if len(steps.runs) != 1:  # several runs share all parameters
        return None
    boundary = steps.runs[0].boundary
    groups = [_backward(problem, value, boundary) for value in shared]
    groups = [group for group in groups if len(group) > 1]
    if not groups:
        return None
    found = components(
        [
            [m - boundary for m in _producers(problem, step) if m >= boundary]
            for step in range(boundary, len(steps))
        ],
        [[step - boundary for step in group] for group in groups],
    )
    layers = [[step + boundary for step in layer] for layer in found if len(layer) > 1]
    recurrent = [layer for layer in layers if _recurs(problem, layer)]
    if not recurrent:
        return None
    if at_once:
        backward = _Backward(
            problem, boundary, layers, range(boundary, len(steps)), is_eager=True
        ).order
    else:
        updates = [step for step in range(boundary, len(steps)) if not problem.successors[step]]
        backward = _Backward(problem, boundary, recurrent, updates, is_eager=False).order
    order = [*_mirrored(problem, boundary, backward), *backward]
    return order if at_once else min(order, as_late_as_needed(problem, order), key=steps.peak)


def _backward(problem: Precedence, value: int, boundary: int) -> list[int]:
    """Return the backward steps that read a value and whose outputs are used, which excludes
    updates."""
    made = problem.steps.outputs
    return [
        step
        for step in problem.consumers[value]
        if step >= boundary and any(problem.consumers[output] for output in made[step])
    ]


def _producers(problem: Precedence, step: int) -> set[int]:
    """Return the steps that produce a step's inputs."""
    producers = (problem.steps.producer[value] for value in problem.steps.inputs[step])
    return {producer for producer in producers if producer >= 0}


def _recurs(problem: Precedence, layer: list[int]) -> bool:
    """Return True if a step of a layer reads an output of the same layer."""
    inside = set(layer)
    return any(not inside.isdisjoint(_producers(problem, step)) for step in layer)


class _Backward:
    """An order of the backward steps, built step by step.

    It has the layers one after another, each step after the steps that it needs, then the steps in
    `rest`. Urgent steps are placed as soon as they are ready.
    """

    def __init__(
        self,
        problem: Precedence,
        boundary: int,
        layers: list[list[int]],
        rest: Iterable[int],
        is_eager: bool,
    ) -> None:
        self.problem, self.is_eager = problem, is_eager
        self.order: list[int] = []
        self.placed = [step < boundary for step in range(len(problem))]
        self.awaited = [
            sum(first >= boundary for first in firsts) for firsts in problem.predecessors
        ]
        self.consumers = {
            value: {step for step in problem.consumers[value] if step >= boundary}
            for value, producer in enumerate(problem.steps.producer)
            if producer >= boundary
        }
        """For each output of a backward step, its backward consumers that are not placed yet."""
        self.leads = [False] * len(problem)
        for layer in layers:
            for step in layer:
                self.leads[step] = True
        for step in reversed(range(boundary, len(problem))):
            if any(self.leads[later] for later in problem.successors[step]):
                self.leads[step] = True
        for step in itertools.chain(*layers, rest):
            for needed in self._missing(step):
                if not self.placed[needed]:
                    self._place(needed)

    def _missing(self, step: int) -> list[int]:
        """Return a step and its ancestors, in the given order, without those that are already
        placed."""
        if self.placed[step]:
            return []
        found, pending = {step}, [step]
        while pending:
            for first in self.problem.predecessors[pending.pop()]:
                if not self.placed[first] and first not in found:
                    found.add(first)
                    pending.append(first)
        return sorted(found)

    def _place(self, step: int) -> None:
        """Append a step to the order, then the urgent steps that become ready."""
        waiting = [step]
        while waiting:
            placed = heapq.heappop(waiting)
            if self.placed[placed]:
                continue
            self.placed[placed] = True
            self.order.append(placed)
            touched = set(self.problem.successors[placed])
            for later in self.problem.successors[placed]:
                self.awaited[later] -= 1
            for value in self.problem.steps.inputs[placed]:
                consumers = self.consumers.get(value, set())
                consumers.discard(placed)
                if len(consumers) == 1:  # it frees the value
                    touched |= consumers
            for later in touched:
                if not self.placed[later] and not self.awaited[later] and self._is_urgent(later):
                    heapq.heappush(waiting, later)

    def _is_urgent(self, step: int) -> bool:
        steps = self.problem.steps
        if not self.is_eager or not self.leads[step]:
            return self.is_eager
        freed = (
            steps.bytes[value]
            for value in steps.inputs[step]
            if self.consumers.get(value) == {step} and value not in steps.live_out
        )
        return sum(freed) >= steps.total(steps.outputs[step])


def as_late_as_needed(problem: Precedence, order: Sequence[int]) -> list[int]:
    """Return the order with each forward step delayed until a backward step needs it.

    The ancestors of the first backward step that reads a forward value still come first.
    """
    boundary = problem.steps.runs[0].boundary
    placed: dict[int, None] = {}
    position = {step: number for number, step in enumerate(order)}
    targets = [step for step in order if step >= boundary or not problem.successors[step]]
    targets.sort(key=lambda step: (step < boundary, position[step]))
    reading = (
        step
        for step in targets
        if any(producer < boundary for producer in _producers(problem, step))
    )
    for step in itertools.chain(itertools.islice(reading, 1), targets):
        missing, pending = {step}, [step]
        while pending:
            for first in problem.predecessors[pending.pop()]:
                if first not in placed and first not in missing:
                    missing.add(first)
                    pending.append(first)
        placed |= dict.fromkeys(sorted(missing, key=position.__getitem__))
    return list(placed)


def _mirrored(problem: Precedence, boundary: int, backward: Sequence[int]) -> list[int]:
    """Return the forward steps, sorted by the last backward step that needs each; latest first."""
    needed_at = [-1] * len(problem)
    for position, step in enumerate(backward):
        needed_at[step] = position
    for step in reversed(range(len(problem))):
        # Backward steps count by data only: a step that only has to run later may be an update.
        for first in problem.predecessors[step] if step < boundary else _producers(problem, step):
            if first < boundary:
                needed_at[first] = max(needed_at[first], needed_at[step])
    return sorted(range(boundary), key=lambda step: (-needed_at[step], step))
