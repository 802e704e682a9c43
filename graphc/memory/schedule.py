"""Schedules: the common form in which every recomputation policy ends.

A sequence s(0), s(1), ... lists steps of a graph without copies; a step may occur several times.
Let `a[v]` be the latest occurrence of value v so far. Each occurrence of a step reads `a[v]` for
its operands and then becomes `a[v]` for its outputs, so `materialise` walks over the sequence once.
Liveness decides what is freed when. A sequence is legal if it contains every step, effects once,
and each step after what it reads. The graph then computes the same bits, since a copy is the same
op on the same operands.

`compile` uses this form for every policy. Budget planners choose the position of each copy, which
mirror counts cannot express. Alg. 2 of Chen et al. (2016), with mirror counts during
differentiation, is passes/gradient.py, for users of `graphc.gradient`. `mirrored_sequence` gives it
in this form. test_the_sequence_of_mirror_counts_is_algorithm_2 in tests/memory/test_schedule.py
checks that both give one graph for counts 0 and 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from graphc.errors import GraphError
from graphc.ir import builder
from graphc.ir.graph import Graph, Node
from graphc.ir.rewrite import Rewriter
from graphc.memory.mirror_counts import MirrorCount, mirror_counts


def materialise(graph: Graph, sequence: Sequence[int]) -> Graph:
    """Return the graph that executes `sequence`, with recomputed steps as copies of nodes. Raises
    `GraphError` unless every step occurs after its inputs, and those with effects occur once.
    """
    execution = Execution(graph)
    for step in sequence:
        execution.run(step)
    return execution.result()


class Execution:
    """A graph that executes steps of `graph`, extended by one occurrence of a step after the
    other."""

    def __init__(self, graph: Graph) -> None:
        self.graph, self.rewriter = graph, Rewriter(graph)
        self.first: dict[int, Node] = {}
        self.count = [0] * len(graph.nodes)

    def run(self, step: int) -> None:
        """Append an occurrence of a step; raises `GraphError` if it may not run now."""
        graph, rewriter, first = self.graph, self.rewriter, self.first
        if not 0 <= step < len(graph.nodes):
            raise GraphError(
                f"the sequence contains step {step}, but the graph has {len(graph.nodes)} nodes"
            )
        node = graph.nodes[step]
        for value in node.inputs:
            # Any earlier occurrence will do: the stand-in is the latest one, which is a[v].
            if value.node is not None and value.node not in rewriter.stand_ins:
                raise GraphError(
                    f"the sequence runs {node.label} before its input {value.node.label}"
                )
        if step not in first:
            first[step] = rewriter.put(node, rewriter.moved(node))
        elif node.op.has_effect:
            raise GraphError(
                f"the sequence runs {node.label} twice, but nodes that replace a state run once"
            )
        else:
            # All copies name the first occurrence as their original, so that no copy is of a copy.
            inputs, level = rewriter.values(node.inputs), self.count[step]
            again = builder.copy(
                node, inputs, phase="mirror", mirror=0, copy_of=first[step], level=level
            )
            rewriter.put(node, again)
        self.count[step] += 1

    def result(self) -> Graph:
        """Return the graph; raises `GraphError` unless every step ran."""
        graph, rewriter = self.graph, self.rewriter
        missing = [node.label for step, node in enumerate(graph.nodes) if step not in self.first]
        if missing:
            raise GraphError(
                f"the sequence omits {', '.join(missing[:3])}; every node must run at least once"
            )
        for step, node in self.first.items():  # outputs of the graph come from first occurrences
            rewriter.stand(graph.nodes[step].outputs, node.outputs)
        return rewriter.result()


def mirrored_sequence(graph: Graph, mirror: MirrorCount) -> list[int]:
    """Return the sequence of given mirror counts of forward nodes, in the lazy order of Alg. 2.

    A copy is made right before the first gradient node that reads it, together with the copies of
    the same or a lower level that it needs.
    """
    forward = [node for node in graph.nodes if node.phase == "forward"]
    counts = mirror_counts(forward, mirror, graph.kept)
    made: set[tuple[Node, int]] = set()
    sequence: list[int] = []

    def emit(node: Node, level: int) -> None:
        needed: set[tuple[Node, int]] = set()
        pending = [(node, level)]
        while pending:
            key = pending.pop()
            # Made for an earlier gradient, and still the latest of its level.
            if key in needed or key in made:
                continue
            needed.add(key)
            for value in key[0].inputs:
                count = min(key[1], counts.get(value.node, 0)) if value.node is not None else 0
                if value.node is not None and count:
                    pending.append((value.node, count))
        # In the order of the forward graph, so that each follows what it reads.
        order = sorted(needed, key=lambda key: (graph.position[key[0]], key[1]))
        sequence.extend(graph.position[original] for original, _ in order)
        made.update(needed)

    for step, node in enumerate(graph.nodes):
        if node.phase == "gradient":
            for value in node.inputs:
                if value.node is not None and counts.get(value.node, 0):
                    emit(value.node, counts[value.node])
        sequence.append(step)
    return sequence
