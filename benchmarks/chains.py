"""Chains of stages with a backward pass, the problems of rotor and POFO, as given problems.

Stage k of a chain runs forward as F_k and backward as B_k. F_k reads the activation of stage k - 1
and computes that of stage k and what the stage saves for its backward. B_k reads the gradient of
the activation of stage k, this activation, what stage k saved, and the activation of stage k - 1.
It computes the gradient of the last of these. The last stage is the loss, whose gradient has no
bytes. The input of the network and its parameters are not counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from graphc.planner.given import GivenProblem, HostLink
from graphc.planner.given.problem import parse_problem


@dataclass(frozen=True)
class Chain:
    """The stages of a chain: seconds of forward and backward, and bytes by stage.

    `gradient` has the bytes of the gradient of each stage's activation. Workspaces are bytes beside
    operands and results.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]
    activation: tuple[int, ...]
    saved: tuple[int, ...]
    gradient: tuple[int, ...]
    forward_workspace: tuple[int, ...]
    backward_workspace: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.forward)

    @cached_property
    def whole(self) -> tuple[int, ...]:
        """Bytes of each stage's activation with what the stage saves."""
        return tuple(a + s for a, s in zip(self.activation, self.saved, strict=True))

    @cached_property
    def forward_bytes(self) -> tuple[int, ...]:
        """Bytes that F_k needs beside its input."""
        return tuple(w + b for w, b in zip(self.whole, self.forward_workspace, strict=True))

    @cached_property
    def backward_bytes(self) -> tuple[int, ...]:
        """Bytes that B_k needs beside the activation of stage k - 1."""
        before = (0, *self.gradient)
        return tuple(
            self.whole[k] + self.gradient[k] + before[k] + self.backward_workspace[k]
            for k in range(len(self))
        )

    def input_bytes(self, stage: int, with_saved: bool = False) -> int:
        """Return the bytes of a stage's input, by choice with what the stage before it saves."""
        sizes = self.whole if with_saved else self.activation
        return sizes[stage - 1] if stage else 0

    def backward_node(self, stage: int) -> int:
        """Return the node of B_k in the problem; that of F_k is k."""
        return 2 * len(self) - 1 - stage

    def as_data(self) -> dict[str, Any]:
        """Return the chain in the format of `graphc remat`; stages that save nothing have one
        output."""
        nodes: list[dict[str, Any]] = [
            {
                "id": stage,
                "cost": self.forward[stage],
                "bytes": [self.activation[stage], *filter(None, [self.saved[stage]])],
                "inputs": [[stage - 1, 0]] if stage else [],
                "workspace": self.forward_workspace[stage],
            }
            for stage in range(len(self))
        ]
        for stage in reversed(range(len(self))):
            sources = [[stage, index] for index in range(1 + bool(self.saved[stage]))]
            if stage < len(self) - 1:
                sources.append([self.backward_node(stage + 1), 0])
            if stage:
                sources.append([stage - 1, 0])
            nodes.append(
                {
                    "id": len(nodes),
                    "cost": self.backward[stage],
                    "bytes": [self.gradient[stage - 1] if stage else 0],
                    "inputs": sources,
                    "workspace": self.backward_workspace[stage],
                }
            )
        return {"nodes": nodes, "boundary": len(self)}

    def problem(self, link: HostLink | None = None) -> GivenProblem:
        """Return the chain as a problem."""
        return replace(parse_problem(self.as_data()), link=link)


def random_chain(rng: np.random.Generator, stages: int) -> Chain:
    """Return a chain of stages that take about a millisecond and have about 10 MB each.

    Sizes fall along half of the chains, as in convolutional networks. Half save twice their
    activations on average beside these, as blocks of layers do.
    """
    falls = rng.choice([0.0, 1.0])
    trend = np.exp(-falls * 2.5 * np.arange(stages) / stages)
    forward = 1e-3 * rng.lognormal(0.0, 0.7, stages)
    activation = 1e7 * trend * rng.lognormal(0.0, 0.6, stages)
    activation[-1] = 4
    saved = activation * rng.uniform(0.0, 4.0, stages) * rng.choice([0.0, 1.0])
    workspace = 1e6 * rng.lognormal(0.0, 1.0, stages) * rng.choice([0.0, 1.0])
    return Chain(
        tuple(forward.tolist()),
        tuple((forward * rng.uniform(1.0, 2.5, stages)).tolist()),
        _whole(activation),
        _whole(saved),
        (*_whole(activation[:-1]), 0),
        _whole(workspace),
        _whole(workspace),
    )


def _whole(sizes: Sequence[float] | np.ndarray) -> tuple[int, ...]:
    return tuple(int(size) for size in sizes)
