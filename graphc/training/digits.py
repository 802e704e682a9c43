"""Scikit-learn's handwritten digits: 1,797 images of 8 by 8 pixels in ten classes."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from graphc.compiler.compile import compile
from graphc.compiler.families import family
from graphc.errors import DependencyError, OptionError, choose, to_install
from graphc.ir.builder import input, scope
from graphc.ir.graph import Value
from graphc.models.heads import classified
from graphc.models.mlp import mlp_logits
from graphc.ops.activation import relu
from graphc.ops.batch_norm import batch_norm
from graphc.ops.conv_layers import conv2d
from graphc.ops.matmul import linear
from graphc.ops.pool_axes import max_pool2d
from graphc.ops.random import dropout
from graphc.ops.shape import reshape
from graphc.runtime.family import Family
from graphc.runtime.program import Program
from graphc.training.recipe import Recipe
from graphc.training.run import Array, TrainingRun

SIDE, CLASSES = 8, 10
PIXELS = SIDE * SIDE
TEST_IMAGES = 360


def conv_logits(layers: int, hidden: int, batch: int) -> Value:
    """Return the logits of a small convolutional network for an input ``x`` (batch, pixels).

    It has `layers` 3x3 convolutions with max pooling after every second one, then a linear layer
    of `hidden` units with dropout.
    """
    h = reshape(input("x", (batch, PIXELS)), (batch, 1, SIDE, SIDE))
    for layer in range(layers):
        with scope(f"conv{layer}"):
            h = relu(batch_norm(conv2d(h, 32 * 2 ** (layer // 2), 3, padding=1, bias=False)))
        if layer % 2 and h.shape[2] > 1:
            h = max_pool2d(h, 2, 2)
    with scope("hidden"):
        h = dropout(relu(linear(reshape(h, (batch, -1)), hidden)), 0.3)
    with scope("output"):
        return linear(h, CLASSES)


LOGITS: dict[str, Callable[[int, int, int], Value]] = {
    "mlp": lambda layers, hidden, batch: mlp_logits(layers, hidden, PIXELS, CLASSES, batch),
    "conv": conv_logits,
}


@dataclass(frozen=True, slots=True)
class Digits:
    """Images scaled to `[0, 1]` and their labels, in an order shuffled with a fixed seed.

    The last ones are the test set.
    """

    train_x: Array
    train_labels: Array
    test_x: Array
    test_labels: Array


@dataclass(frozen=True, slots=True)
class Epoch:
    """Results of one pass over the training images."""

    number: int
    loss: float
    test_accuracy: float
    steps_per_second: float


def load_digits() -> Digits:
    """Load the data set of scikit-learn; raise `DependencyError` if it is not installed."""
    try:
        from sklearn import datasets
    except ImportError:
        cure = to_install("scikit-learn", "demo")
        raise DependencyError(f"the digits data set requires scikit-learn; {cure}") from None
    x, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, labels = (x[order] / 16).astype(np.float32), labels[order].astype(np.int32)
    cut = len(x) - TEST_IMAGES
    return Digits(x[:cut], labels[:cut], x[cut:], labels[cut:])


class DigitsTraining(TrainingRun):
    """A training program and an inference program for the same network."""

    def __init__(
        self,
        recipe: Recipe,
        epochs: int,
        *,
        model: str = "mlp",
        layers: int = 4,
        hidden: int = 128,
        batch: int = 64,
        dump: str | None = None,
        drop_last: bool = True,
    ) -> None:
        """Load the data and compile both programs; a step takes `recipe.accumulate` batches.

        Without `drop_last`, the images that remain at the end of an epoch are a smaller batch.
        """
        logits_of = LOGITS[choose("digits: model", model, tuple(LOGITS))]
        self.data, self.batch = load_digits(), batch
        self.step_images = batch * recipe.accumulate * recipe.ranks
        if not self.step_images <= len(self.data.train_x):
            raise OptionError(
                "batch times accumulate times ranks must be between 1 and the number of training "
                f"images, {len(self.data.train_x)}; got batch={batch}, "
                f"accumulate={recipe.accumulate}, ranks={recipe.ranks}"
            )
        whole_steps, rest = divmod(len(self.data.train_x), self.step_images)
        last = 0 if drop_last else rest
        self.steps_per_epoch = whole_steps + bool(last)
        steps = epochs * self.steps_per_epoch
        options = {"dump": dump, **recipe.compile_options(steps)}
        logits = logits_of(layers, hidden, batch)
        training: Program | Family
        if last:
            training = family(
                lambda batch: classified(logits_of(layers, hidden, batch)),
                {"batch": (batch, last)},
                **options,
            )
        else:
            training = compile(classified(logits), **options)
        self.inference = compile(outputs={"logits": logits}, **recipe.inference_options())
        sizes = {"layers": layers, "hidden": hidden, "batch": batch * recipe.ranks}
        if last:
            sizes["last_batch"] = last
        super().__init__(recipe, training, steps, task="digits", model=model, **sizes)

    def run(self) -> Iterator[Epoch | int]:
        """Train to the end.

        Yield the number of completed steps after each step, and an `Epoch` after each epoch.
        """
        while self.done < self.steps:
            epoch, first = divmod(self.done, self.steps_per_epoch)
            order = np.random.default_rng((self.recipe.seed, epoch))
            shuffled = order.permutation(len(self.data.train_x))
            started, total, weight = time.perf_counter(), 0.0, 0.0
            for step in range(first, self.steps_per_epoch):
                rows = shuffled[step * self.step_images : (step + 1) * self.step_images]
                part = len(rows) / self.step_images
                total += self.step(self.feeds(rows)) * part
                weight += part
                yield self.done
            speed = (self.steps_per_epoch - first) / (time.perf_counter() - started)
            yield Epoch(epoch + 1, total / weight, self.test_accuracy(), speed)

    def feeds(self, rows: Array) -> dict[str, Array]:
        """Return this rank's images and labels of a step.

        With several micro-batches, arrays have an additional first axis for them.
        """
        rows = self.own(rows, min(self.batch, len(rows)))
        x, labels = self.data.train_x[rows], self.data.train_labels[rows]
        if self.recipe.accumulate == 1:
            return {"x": x, "labels": labels}
        shape = (self.recipe.accumulate, self.batch)
        return {"x": x.reshape(*shape, PIXELS), "labels": labels.reshape(shape)}

    def test_accuracy(self) -> float:
        """Return the accuracy of the current parameters on the test images."""
        self.copy_states(self.inference)
        hits, images = 0, len(self.data.test_x)
        for start in range(0, images, self.batch):
            count = min(self.batch, images - start)
            x = np.zeros((self.batch, PIXELS), np.float32)
            x[:count] = self.data.test_x[start : start + count]
            best = self.inference.step(x=x)["logits"][:count].argmax(axis=1)
            hits += int((best == self.data.test_labels[start : start + count]).sum())
        return hits / images
