"""Training of any network: one of graphc, an ONNX file, or a torch module."""

from __future__ import annotations

import hashlib
import math
import operator
import time
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.compiler.compile import compile
from graphc.compiler.families import family
from graphc.importing.names import Names
from graphc.importing.network import Network
from graphc.ir import builder
from graphc.ir.graph import Value
from graphc.ir.text import format_graph
from graphc.onnx import save
from graphc.passes.modes import number_streams
from graphc.runtime.family import Family
from graphc.runtime.program import Program
from graphc.training.evaluation import Evaluation
from graphc.training.feeds import ArrayFeeds, Feeds, FunctionFeeds
from graphc.training.recipe import Recipe
from graphc.training.run import TrainingRun

REPORTS = 20
"""Number of reports of a run whose length is given in steps, not in epochs."""


@dataclass(frozen=True, slots=True)
class MeanLoss:
    """The mean loss of the steps since the last report, and scores on held-out examples.

    `epoch` is None for a run whose length is given in steps. Scores are None without held-out
    examples. The accuracy is also None for a network that is not a classifier.
    """

    step: int
    epoch: int | None
    loss: float
    held_out_loss: float | None
    held_out_accuracy: float | None
    steps_per_second: float
    examples_per_second: float | None


class NetworkTraining(TrainingRun):
    """A program that trains a network on a loss.

    It starts from the weights of an imported network, or from random initial values.
    """

    def __init__(
        self,
        recipe: Recipe,
        loss: Value,
        feeds: ArrayFeeds | FunctionFeeds,
        *,
        epochs: int | None = None,
        steps: int = 0,
        network: Network | None = None,
        dump: str | None = None,
        task: str = "network",
        build: Callable[..., Value] | None = None,
    ) -> None:
        """Compile the programs. `epochs` need `ArrayFeeds`, and replace `steps`.

        If the last batch of an epoch is smaller, `build(batch=...)` returns the loss for its size.
        """
        if isinstance(feeds, ArrayFeeds) and epochs is not None:
            steps = epochs * feeds.steps_per_epoch
        last = feeds.last_batch if isinstance(feeds, ArrayFeeds) else 0
        options = {"dump": dump, **recipe.compile_options(steps)}
        training: Program | Family
        if last and isinstance(feeds, ArrayFeeds):
            assert build is not None, "a smaller last batch needs the loss for its size"
            training = family(build, {"batch": (feeds.batch, last)}, **options)
        else:
            training = compile(loss, **options)
        if network is not None and isinstance(training, Program):
            network.initialize(training)
        text = format_graph(number_streams(builder.trace({"loss": loss})))
        digest = hashlib.sha256(text.encode()).hexdigest()
        sizes = {"task": task, "network": digest, "data": feeds.digest}
        self.evaluation: Evaluation | None = None
        if isinstance(feeds, ArrayFeeds) and feeds.held_out_examples:
            evaluated = recipe.inference_options()
            self.evaluation = Evaluation(loss, feeds.held_out_batches, evaluated)
            sizes["held_out"] = str(feeds.held_out_examples)
        if last:
            sizes["last_batch"] = str(last)
        super().__init__(recipe, training, steps, **sizes)
        self.feeds, self.network, self.epochs = feeds, network, epochs

    def run(self) -> Iterator[MeanLoss | int]:
        """Train to the end.

        Yield the number of completed steps after each step, and a `MeanLoss` for each report.
        """
        ranks, own = self.training.ranks, self.training.rank
        count = self.recipe.accumulate * ranks
        batches = self.feeds(self.done * count)
        started, losses, sizes = time.perf_counter(), list[float](), list[int]()
        every = math.ceil(self.steps / (self.epochs or REPORTS))
        while self.done < self.steps:
            fed = [next(batches) for _ in range(count)]  # interleaved by rank
            losses.append(self.step(_joined(fed[own::ranks])))
            sizes.append(self._examples(fed))
            yield self.done
            if self.done % every == 0 or self.done == self.steps:
                yield self._report(losses, sizes, time.perf_counter() - started)
                started, losses, sizes = time.perf_counter(), [], []

    def _examples(self, fed: list[Feeds]) -> int:
        """Return the number of examples of a step; 0 if it is unknown."""
        if self.feeds.step_examples is None:
            return 0
        return sum(len(next(iter(each.values()))) for each in fed)

    def _report(self, losses: list[float], sizes: list[int], seconds: float) -> MeanLoss:
        """Return the mean loss of steps, each weighted by its examples if their numbers differ."""
        speed, scores = len(losses) / seconds, None
        weights = [1] * len(losses) if len({*sizes}) == 1 else sizes
        mean = sum(map(operator.mul, losses, weights)) / sum(weights)
        if self.evaluation is not None:
            self.copy_states(self.evaluation.program)
            scores = self.evaluation.scores()
        examples = sum(sizes)
        return MeanLoss(
            step=self.done,
            epoch=None if self.epochs is None else self.done * self.epochs // self.steps,
            loss=mean,
            held_out_loss=None if scores is None else scores.loss,
            held_out_accuracy=None if scores is None else scores.accuracy,
            steps_per_second=speed,
            examples_per_second=examples / seconds if examples else None,
        )

    def export(self, path: str) -> None:
        """Write the imported network with its current weights and all of its outputs as ONNX.

        States that the loss does not read keep their imported values. All ranks call this
        method, and only rank 0 writes.
        """
        trained = dict(self.training.states)
        if self.training.rank != 0:
            return
        names, network = Names(), self.network
        assert network is not None, "a loss of graphc has no imported network"
        outputs = {names.unique(name): value for name, value in network.outputs.items()}
        rest = {name: network.states[name] for name in network.states if name not in trained}
        save(outputs, path, states=ChainMap(trained, rest))


def _joined(batches: list[Feeds]) -> Mapping[str, Any]:
    """Return a single batch unchanged; stack several batches along a new first axis."""
    if len(batches) == 1:
        return batches[0]
    return {name: np.stack([each[name] for each in batches]) for name in batches[0]}
