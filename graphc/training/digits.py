"""An MLP on scikit-learn's handwritten digits: 1,797 images of 8 by 8 pixels in ten classes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.compiler import compile
from graphc.errors import DependencyError, OptionError
from graphc.ir.builder import input
from graphc.ir.ops.loss import softmax_cross_entropy
from graphc.ir.plan import Allocate, Recompute
from graphc.models.mlp import mlp_logits
from graphc.optim import Adam
from graphc.runtime.program import Program

Array = np.ndarray[Any, np.dtype[Any]]

PIXELS, CLASSES = 64, 10
TEST_IMAGES = 360


@dataclass(frozen=True, slots=True)
class Digits:
    """Pixels scaled to [0, 1], shuffled once with a fixed seed; the last images are for testing."""

    train_x: Array
    train_labels: Array
    test_x: Array
    test_labels: Array


@dataclass(frozen=True, slots=True)
class Epoch:
    """What one pass over the training images gave."""

    number: int
    loss: float
    test_accuracy: float
    steps_per_second: float


def load_digits() -> Digits:
    """Read the data set that scikit-learn carries; `DependencyError` without scikit-learn."""
    try:
        from sklearn import datasets
    except ImportError:
        raise DependencyError(
            "the digits data set comes with scikit-learn; install it with: pip install graphc[demo]"
        ) from None
    x, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = (x[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    cut = len(x) - TEST_IMAGES
    return Digits(x[:cut], labels[:cut], x[cut:], labels[cut:])


@dataclass(frozen=True)
class DigitsTraining:
    """A training program and an inference program for the same network."""

    data: Digits
    training: Program
    inference: Program
    batch: int
    seed: int

    @classmethod
    def prepare(
        cls,
        *,
        layers: int = 4,
        hidden: int = 128,
        batch: int = 64,
        learning_rate: float = 1e-3,
        recompute: Recompute = "none",
        allocate: Allocate = "packed",
        seed: int = 0,
        dump: str | None = None,
    ) -> DigitsTraining:
        """Load the data, plan and bind both programs."""
        data = load_digits()
        if not 1 <= batch <= len(data.train_x):
            raise OptionError(f"batch must lie between 1 and {len(data.train_x)}, got {batch}")
        logits = mlp_logits(layers, hidden, PIXELS, CLASSES, batch)
        loss = softmax_cross_entropy(logits, input("labels", (batch,), dtype="int32"))
        training = compile(
            loss,
            optimizer=Adam(learning_rate),
            recompute=recompute,
            allocate=allocate,
            seed=seed,
            dump=dump,
        )
        return cls(data, training, compile(outputs={"logits": logits}), batch, seed)

    @property
    def steps_per_epoch(self) -> int:
        return len(self.data.train_x) // self.batch

    def epochs(self, count: int) -> Iterator[Epoch | int]:
        """Train; yields each finished step's number in its epoch, then the epoch."""
        order = np.random.default_rng(self.seed)
        for number in range(1, count + 1):
            started, total = time.perf_counter(), 0.0
            shuffled = order.permutation(len(self.data.train_x))
            for step in range(self.steps_per_epoch):
                rows = shuffled[step * self.batch : (step + 1) * self.batch]
                feeds = {"x": self.data.train_x[rows], "labels": self.data.train_labels[rows]}
                total += float(self.training.step(feeds)["loss"])
                yield step + 1
            speed = self.steps_per_epoch / (time.perf_counter() - started)
            yield Epoch(number, total / self.steps_per_epoch, self.test_accuracy(), speed)

    def test_accuracy(self) -> float:
        """The part of the test images that the current parameters classify right."""
        self.inference.parameters.update(self.training.parameters)
        hits, images = 0, len(self.data.test_x)
        for start in range(0, images, self.batch):
            count = min(self.batch, images - start)
            x = np.zeros((self.batch, PIXELS), np.float32)
            x[:count] = self.data.test_x[start : start + count]
            best = self.inference.step(x=x)["logits"][:count].argmax(axis=1)
            hits += int((best == self.data.test_labels[start : start + count]).sum())
        return hits / images
