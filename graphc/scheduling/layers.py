"""Orders in which layers that use their parameters again and again run one after another.

A network that is unrolled over time is written step of time by step of time, and differentiated
backwards in that order. Then all its layers' parameters gather their gradients at once, over the
whole backward pass. Layer after layer, each over all of time, only one layer's gradients are
unfinished at a time; what passes from layer to layer is kept for all times instead, which is small
beside them where layers are wide. An exchange of the two loops is legal wherever a layer reads from
the layers below alone.

Layers are found, not named: backward steps that read one parameter belong together, and so do
groups that read from each other. Those are the strongly connected components of the steps with one
vertex more for each parameter (`components`). A parameter that is read once makes no layer, and
layers that all share one, as by a table of words that is both the first and the last, are one.

Backward steps follow the layers, in the order in which they need each other, and inside a layer the
order given. What a layer needs beside it is run when it is asked for. Of the rest there are two
ways. Where values are made again, bytes are few while a layer runs, and run at once, as soon as
they may,

    a step from which no layer is reached     a parameter's gradient, its sum, its update
    a step that frees what it makes, or more  what passes on to the next layer

Where all values are kept, bytes are most at the turn. There a sum of gradients would come on top
of them, while its operands lie where values of the forward pass have been. So these wait until all
layers have run, and then follow one update after another.

Behind the layers, forward steps may wait until a gradient asks for them (`when_asked`), as the
output of each time does: it is wide where there are many classes or words, and then never kept.
Where all values are kept the lower peak decides, else planners try both.

Forward steps are those of a mirror: each stands by the last backward step that needs it, the last
of those first. This is topological, as a step is needed at least as late as all that it is needed
for.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Collection, Iterable, Sequence

from graphc.scheduling.precedence import Precedence


def components(
    predecessors: Sequence[Iterable[int]], groups: Iterable[Collection[int]]
) -> list[list[int]]:
    """Strongly connected components of vertices 0, 1, ... with edges from each of `predecessors[v]` to v,
    where those of a group are one; in topological order, of several by their least vertex."""
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
    """An order by layers of the values `shared`, or None where no layer reads from itself.

    `at_once` chooses when gradients of parameters are summed. O(n log n) for n steps with a bounded
    number of readers each.
    """
    steps = problem.steps
    if len(steps.runs) != 1:  # several passes share all parameters
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
    return order if at_once else min(order, when_asked(problem, order), key=steps.peak)


def _backward(problem: Precedence, value: int, boundary: int) -> list[int]:
    """Backward steps that read a value and that another step waits for: no updates."""
    made = problem.steps.outputs
    return [
        step
        for step in problem.consumers[value]
        if step >= boundary and any(problem.consumers[output] for output in made[step])
    ]


def _producers(problem: Precedence, step: int) -> set[int]:
    """The steps that make what a step reads."""
    producers = (problem.steps.producer[value] for value in problem.steps.inputs[step])
    return {producer for producer in producers if producer >= 0}


def _recurs(problem: Precedence, layer: list[int]) -> bool:
    """Whether a step of a layer reads what another one of it makes."""
    inside = set(layer)
    return any(not inside.isdisjoint(_producers(problem, step)) for step in layer)


class _Backward:
    """The backward steps placed so far, and what those that are left still wait for.

    Layers are placed one after another, then what the steps `rest` need; what is urgent at once.
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
        """Backward readers, still to be placed, of what backward steps make."""
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
        """A step and all that it waits for and that is not placed, in the order given."""
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
        """Place a step, and what may and should follow at once."""
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
                if len(consumers) == 1:  # which frees the value
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


def when_asked(problem: Precedence, order: Sequence[int]) -> list[int]:
    """The order with forward steps as late as the backward ones in it allow.

    What the first backward step that reads of the forward pass asks for still comes first.
    """
    boundary = problem.steps.runs[0].boundary
    placed: dict[int, None] = {}
    position = {step: number for number, step in enumerate(order)}
    asking = [step for step in order if step >= boundary or not problem.successors[step]]
    asking.sort(key=lambda step: (step < boundary, position[step]))
    reading = (
        step
        for step in asking
        if any(producer < boundary for producer in _producers(problem, step))
    )
    for step in itertools.chain(itertools.islice(reading, 1), asking):
        missing, pending = {step}, [step]
        while pending:
            for first in problem.predecessors[pending.pop()]:
                if first not in placed and first not in missing:
                    missing.add(first)
                    pending.append(first)
        placed |= dict.fromkeys(sorted(missing, key=position.__getitem__))
    return list(placed)


def _mirrored(problem: Precedence, boundary: int, backward: Sequence[int]) -> list[int]:
    """Forward steps, those that the backward pass needs last before others."""
    needed_at = [-1] * len(problem)
    for position, step in enumerate(backward):
        needed_at[step] = position
    for step in reversed(range(len(problem))):
        # What is to run behind a forward step without reading of it may be an update: no mirror.
        for first in problem.predecessors[step] if step < boundary else _producers(problem, step):
            if first < boundary:
                needed_at[first] = max(needed_at[first], needed_at[step])
    return sorted(range(boundary), key=lambda step: (-needed_at[step], step))
