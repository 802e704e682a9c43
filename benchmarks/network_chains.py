"""Collapses the training step of a network to a chain of stages (chains.py).

Forward steps are cut where at most one value crosses, apart from skip connections: values whose
last forward use is more than a tenth of all forward steps later. So ResNet is cut between residual
blocks, GPT-2 before and after attention, and U-Net between layers. While there are more than `MOST`
stages, the neighbors with the fewest forward seconds are merged.

A backward step runs no later than the stages of its operands, for an operand of the forward pass
the stage that reads it last. It moves to the stage before if its results are larger than its
operands and no reader runs earlier, so that the smaller values cross.

A chain cannot express values that pass a stage by, such as skip connections, their gradients, and
the gradient of a shared embedding. They stay on the device for the whole step, as fixed bytes. All
other values between two stages are one activation or gradient. The workspace of a stage covers what
its steps need beside the values that outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial

from chains import Chain

import graphc
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import before
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import MODELS
from graphc.planner.problem import Problem as Steps

SKIP = 0.1
"""Least distance of production and last forward use of a skip connection, in forward steps."""

MOST = 40
"""Maximum number of stages."""


PRECISIONS = ("fp32", "tf32")

NETWORKS: dict[str, Callable[[], graphc.Value]] = {
    "ResNet-50, batch 64": partial(MODELS["resnet"], depth=50, batch=64, form="common"),
    "U-Net, batch 16": partial(MODELS["unet"], batch=16),
    "GPT-2 medium, batch 8": partial(MODELS["gpt2"], size="medium", batch=8),
}


def training_steps(network: graphc.Value, device: str, precision: str) -> Steps:
    """Return the training step of a network as steps of a planner, with the seconds of the cost
    model."""
    options = PlanOptions(network, optimizer=graphc.optim.SGD(), device=device, precision=precision)
    graph = run(traced(options), before("recompute"), Compilation(options))
    allocation = Allocation(graph, options.target)
    return TrainingGraph(allocation, options.cost_model.seconds, False).steps


def collapse(steps: Steps) -> tuple[Chain, int]:
    """Return the chain of a training step, and the bytes that stay beside it."""
    return _Collapse(steps).chain()


class _Collapse:
    """The stages of all steps of a training step."""

    def __init__(self, steps: Steps) -> None:
        self.steps, self.turn = steps, steps.runs[0].boundary
        self.producer = {value: step for step, out in enumerate(steps.outputs) for value in out}
        self.readers: dict[int, list[int]] = {value: [] for value in range(len(steps.bytes))}
        for step, inputs in enumerate(steps.inputs):
            for value in inputs:
                self.readers[value].append(step)
        self.forward_use = {
            value: max(step for step in readers if step < self.turn)
            for value, readers in self.readers.items()
            if any(step < self.turn for step in readers)
        }
        self.stage_of: list[int] = []
        ends = self.ends()
        self.count = len(ends)
        for stage, end in enumerate(ends):
            self.stage_of += [stage] * (end + 1 - len(self.stage_of))
        self.add_backward()

    def known(self, step: int) -> Iterable[int]:
        """Yield the operands of a step that a step computes."""
        return (value for value in self.steps.inputs[step] if value in self.producer)

    def ends(self) -> list[int]:
        """Return the last forward step of each stage."""
        short = [0] * self.turn
        for value, first in self.producer.items():
            last = self.forward_use.get(value, first)
            if last - first <= SKIP * self.turn:
                for step in range(first, last):
                    short[step] += 1
        ends = [step for step in range(self.turn - 1) if short[step] <= 1] + [self.turn - 1]
        while len(ends) > MOST:
            starts = [0, *(end + 1 for end in ends)]
            pairs = range(len(ends) - 1)
            seconds = [sum(self.steps.cost[starts[k] : ends[k + 1] + 1]) for k in pairs]
            del ends[seconds.index(min(seconds))]
        return ends

    def add_backward(self) -> None:
        """Append the stages of backward steps."""
        last = self.count - 1
        for step in range(self.turn, len(self.steps)):
            uses = (self.forward_use.get(v, self.producer.get(v)) for v in self.steps.inputs[step])
            stages = (self.stage_of[use] for use in uses if use is not None)
            self.stage_of.append(min([last, *stages]))
        for step in reversed(range(self.turn, len(self.steps))):
            if any(
                v in self.forward_use and v not in self.producer for v in self.steps.inputs[step]
            ):
                continue
            outputs = self.steps.outputs[step]
            readers = [self.stage_of[r] for value in outputs for r in self.readers[value]]
            operands = [value for value in self.known(step) if self.producer[value] >= self.turn]
            if readers and self.size(outputs) >= self.size(operands):
                self.stage_of[step] = max([self.stage_of[step] - 1, *readers])

    @cached_property
    def spans(self) -> dict[int, tuple[int, int]]:
        """For each value that crosses between stages in one pass, the stage after which it crosses
        first and that after which it crosses last, in the order of the forward pass."""
        spans = {}
        for value, step in self.producer.items():
            own = self.stage_of[step]
            if step < self.turn:
                span = own, self.stage_of[self.forward_use.get(value, step)] - 1
            else:
                span = min([own, *(self.stage_of[r] for r in self.readers[value])]), own - 1
            if span[0] <= span[1]:
                spans[value] = span
        return spans

    def chain(self) -> tuple[Chain, int]:
        passing = {value for value, (first, last) in self.spans.items() if first < last}
        columns = []
        for stage in range(self.count):
            forward, backward = (
                [step for step in steps if self.stage_of[step] == stage]
                for steps in (range(self.turn), range(self.turn, len(self.steps)))
            )
            after = {value for value, span in self.spans.items() if span == (stage, stage)}
            before = {value for value, span in self.spans.items() if span == (stage - 1, stage - 1)}
            activation = {value for value in after if self.producer[value] < self.turn}
            inside = {value for step in forward for value in self.steps.outputs[step]}
            read = {value for value in inside if max(self.readers[value], default=0) >= self.turn}
            columns.append(
                (
                    sum(self.steps.cost[step] for step in forward),
                    sum(self.steps.cost[step] for step in backward),
                    self.size(activation),
                    self.size(read - after - passing),
                    self.size(after - activation),
                    self.workspace(forward, (read | activation) - passing, passing),
                    self.workspace(backward, before, passing),
                )
            )
        return Chain(*zip(*columns, strict=True)), self.size(passing)

    def size(self, values: Iterable[int]) -> int:
        return sum(self.steps.bytes[value] for value in values)

    def workspace(self, own: Sequence[int], stays: set[int], passing: set[int]) -> int:
        """Return the most bytes live during steps of a stage, of values that they compute and
        beside those, minus the bytes of all values in `stays`. Values in `passing` do not count."""
        steps, inside = self.steps, set(own)
        computed = {value for step in own for value in steps.outputs[step]} - passing
        ends = {
            value: max([self.producer[value], *(r for r in self.readers[value] if r in inside)])
            for value in computed - stays
        }
        live = most = 0
        for step in own:
            live += self.size(computed.intersection(steps.outputs[step]))
            shared = sum(
                steps.bytes[output]
                for output, operand in steps.overwrites[step]
                if ends.get(operand) == step
            )
            most = max(most, live + steps.workspace[step] - shared)
            live -= self.size(value for value, end in ends.items() if end == step)
        return max(0, most - self.size(stays & computed))
