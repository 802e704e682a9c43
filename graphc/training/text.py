"""Training of a small byte-level GPT on a text, by default the sources of Python's library."""

from __future__ import annotations

import hashlib
import math
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from graphc.compiler.compile import compile
from graphc.errors import NonFiniteError, OptionError
from graphc.models.gpt2 import gpt2, gpt2_features, output_layer
from graphc.training.recipe import Recipe
from graphc.training.run import Array, TrainingRun

BYTES = 256
HELD_OUT = 0.05
"""Fraction of the text, at its end, that is reserved for testing."""

TEST_BATCHES = 8
REPORTS = 20
"""Number of progress reports per run."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run: bits per byte on recent training batches and on held-out text."""

    step: int
    train_bits: float
    test_bits: float
    steps_per_second: float


def read_text(path: str | None) -> Array:
    """Return the bytes of a file, or of the sources of the standard library."""
    if path is not None:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise OptionError(f"cannot read the text {path!r}: {error.strerror}") from None
        return np.frombuffer(content, np.uint8)
    library = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "idlelib", "__pycache__"}
    sources = [
        source
        for source in sorted(library.rglob("*.py"))
        if not skipped & set(source.relative_to(library).parts)
    ]
    content = b"\n".join(source.read_bytes() for source in sources)
    if not content:
        raise OptionError("this machine has no sources of the standard library; pass --file")
    return np.frombuffer(content, np.uint8)


class TextTraining(TrainingRun):
    """Programs that train, test and sample from one network."""

    def __init__(
        self,
        recipe: Recipe,
        steps: int,
        file: str | None = None,
        *,
        layers: int = 4,
        width: int = 128,
        heads: int = 4,
        seq_len: int = 128,
        batch: int = 8,
        drop: float = 0.0,
        dump: str | None = None,
    ) -> None:
        """Read the text and compile the programs; a step takes `recipe.accumulate` batches."""
        text = read_text(file)
        cut = int(len(text) * (1 - HELD_OUT))
        if len(text) - cut <= seq_len + 1:
            raise OptionError(
                f"the text has {len(text)} bytes, but its last {HELD_OUT:.0%}, used for testing, "
                f"must be longer than seq_len={seq_len}; pass a longer text"
            )
        self.text, self.held_out = text[:cut], text[cut:]
        self.seq_len, self.batch = seq_len, batch
        network = {"layers": layers, "width": width, "heads": heads, "seq_len": seq_len}
        figures: dict[str, Any] = {**network, "vocab": BYTES, "positions": seq_len}
        loss = gpt2("small", batch=batch, drop=drop, **figures)
        options = recipe.compile_options(steps)
        training = compile(loss, dump=dump, **options)
        self.testing = compile(loss, **recipe.inference_options())
        features = gpt2_features("small", batch=1, drop=0.0, dtype="float32", **figures)
        logits = output_layer(*features)
        self.continuing = compile(outputs={"logits": logits}, **recipe.inference_options())
        sizes = {
            "text": hashlib.sha256(text.tobytes()).hexdigest(),
            "batch": batch * recipe.ranks,
            "drop": drop,
            **network,
        }
        super().__init__(recipe, training, steps, task="text", **sizes)

    def run(self) -> Iterator[Progress | int]:
        """Train to the end.

        Yield the number of completed steps after each step, and `Progress` at intervals.
        """
        started, losses = time.perf_counter(), []
        every = math.ceil(self.steps / REPORTS)
        while self.done < self.steps:
            order = np.random.default_rng((self.recipe.seed, self.done))
            losses.append(self.step(self.feeds(order)))
            yield self.done
            if self.done % every == 0 or self.done == self.steps:
                speed = len(losses) / (time.perf_counter() - started)
                bits = sum(losses) / len(losses) / math.log(2)
                yield Progress(self.done, bits, self.test_bits(), speed)
                started, losses = time.perf_counter(), []

    def feeds(self, order: np.random.Generator) -> dict[str, Array]:
        """Return this rank's windows of the training text at random positions, for one step."""
        count = self.batch * self.recipe.accumulate * self.recipe.ranks
        starts = self.own(order.integers(0, len(self.text) - self.seq_len, count), self.batch)
        fed = self.windows(self.text, starts)
        if self.recipe.accumulate == 1:
            return fed
        shape = (self.recipe.accumulate, self.batch, self.seq_len)
        return {name: array.reshape(shape) for name, array in fed.items()}

    def windows(self, text: Array, starts: Array) -> dict[str, Array]:
        """Return `seq_len` tokens from each start as input, and the tokens one later as labels."""
        places = starts[:, None] + np.arange(self.seq_len + 1)
        window = text[places].astype(np.int32)
        return {"tokens": window[:, :-1].copy(), "labels": window[:, 1:].copy()}

    def test_bits(self) -> float:
        """Return the bits per byte on held-out text, always at the same positions."""
        self.copy_states(self.testing)
        last = len(self.held_out) - self.seq_len - 1
        starts = np.linspace(0, last, TEST_BATCHES * self.batch).astype(np.int64)
        losses = [
            float(self.testing.step(self.windows(self.held_out, part))["loss"])
            for part in np.split(starts, TEST_BATCHES)
        ]
        return sum(losses) / len(losses) / math.log(2)

    def sample(self, prompt: bytes, length: int, temperature: float = 0.7) -> bytes:
        """Return `prompt` followed by `length` bytes sampled from the network."""
        self.copy_states(self.continuing)
        drawn = np.random.default_rng(self.recipe.seed)
        written = list(prompt)
        for _ in range(length):
            seen = written[-self.seq_len :]
            tokens = np.zeros((1, self.seq_len), np.int32)
            tokens[0, : len(seen)] = seen
            logits = self.continuing.step(tokens=tokens)["logits"][0, len(seen) - 1]
            if not np.isfinite(logits).all():
                raise NonFiniteError(
                    "the network returns no finite logits, so it cannot sample text"
                )
            scores = (logits.astype(np.float64) - logits.max()) / temperature
            chances = np.exp(scores) / np.exp(scores).sum()
            written.append(int(drawn.choice(BYTES, p=chances)))
        return bytes(written)
