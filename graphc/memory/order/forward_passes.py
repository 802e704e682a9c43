"""Forward passes of a training graph: one for each micro-batch."""

from __future__ import annotations

from dataclasses import dataclass

from graphc.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """The forward nodes of one micro-batch, as steps of the graph in order."""

    steps: tuple[int, ...]


def forward_passes(graph: Graph) -> list[ForwardPass]:
    """Return the forward pass of each micro-batch, in order; gradient nodes separate them."""
    passes: list[ForwardPass] = []
    steps: list[int] = []
    for step, node in enumerate(graph.nodes):
        if node.phase == "forward":
            steps.append(step)
        elif node.phase == "gradient" and steps:
            passes.append(ForwardPass(tuple(steps)))
            steps = []
    return [*passes, ForwardPass(tuple(steps))] if steps else passes
