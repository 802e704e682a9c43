"""Training of a network imported from an ONNX file or a torch module."""

from __future__ import annotations

import hashlib
import math
import time
from collections import ChainMap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.compiler import compile
from graphc.importing.names import Names
from graphc.importing.network import Network
from graphc.ir import builder
from graphc.ir.graph import Value
from graphc.ir.text import format_graph
from graphc.onnx import save
from graphc.training.feeds import ArrayFeeds, Feeds, FunctionFeeds
from graphc.training.recipe import Recipe
from graphc.training.run import TrainingRun

REPORTS = 20
"""Number of loss reports per run."""


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """The mean loss of the steps since the last report."""

    step: int
    loss: float
    steps_per_second: float


class OnnxTraining(TrainingRun):
    """A training program for a loss of a network, initialized with the imported weights."""

    def __init__(
        self,
        recipe: Recipe,
        steps: int,
        network: Network,
        loss: Value,
        feeds: ArrayFeeds | FunctionFeeds,
        dump: str | None = None,
        task: str = "onnx",
    ) -> None:
        training = compile(loss, dump=dump, **recipe.compile_options(steps))
        network.initialize(training)
        text = format_graph(builder.trace({"loss": loss}))
        digest = hashlib.sha256(text.encode()).hexdigest()
        super().__init__(recipe, training, steps, task=task, network=digest, data=feeds.digest)
        self.feeds, self.network = feeds, network

    def run(self) -> Iterator[MeanLoss | int]:
        """Train to the end; yield the number of completed steps after each step, and `MeanLoss`."""
        ranks, own = self.training.ranks, self.training.rank
        count = self.recipe.accumulate * ranks
        batches = self.feeds(self.done * count)
        started, losses = time.perf_counter(), []
        every = math.ceil(self.steps / REPORTS)
        while self.done < self.steps:
            fed = [next(batches) for _ in range(count)]  # interleaved by rank
            losses.append(self.step(_joined(fed[own::ranks])))
            yield self.done
            if self.done % every == 0 or self.done == self.steps:
                speed = len(losses) / (time.perf_counter() - started)
                yield MeanLoss(self.done, sum(losses) / len(losses), speed)
                started, losses = time.perf_counter(), []

    def export(self, path: str) -> None:
        """Write the network with its current weights as ONNX, with the outputs of its file.

        States that the loss does not read keep their values from the file. All ranks call this
        method, and only rank 0 writes.
        """
        trained = dict(self.training.states)
        if self.training.rank != 0:
            return
        names, network = Names(), self.network
        outputs = {names.unique(name): value for name, value in network.outputs.items()}
        rest = {name: network.states[name] for name in network.states if name not in trained}
        save(outputs, path, states=ChainMap(trained, rest))


def _joined(batches: list[Feeds]) -> Mapping[str, Any]:
    """Return a single batch unchanged; stack several along a new leading axis."""
    if len(batches) == 1:
        return batches[0]
    return {name: np.stack([each[name] for each in batches]) for name in batches[0]}
