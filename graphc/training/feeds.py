"""Feeds of the steps of a run, from arrays in a file or from a user function."""

from __future__ import annotations

import hashlib
import itertools
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from graphc.errors import FeedError, OptionError, did_you_mean
from graphc.ir.graph import Input
from graphc.training.run import Array

Feeds = Mapping[str, Any]


class ArrayFeeds:
    """Batches of array rows, in another random order in each epoch.

    An input (batch, ...) gets the next rows of the array (examples, ...) with its name. An epoch
    has `steps_per_epoch` steps, each with `step_batches` batches. The examples that remain are not
    used in that epoch or, without `drop_last`, are a smaller last batch of `last_batch` examples.
    `digest` identifies the arrays.

    A fraction `held_out` of the examples, rounded to whole batches, is reserved for evaluation. The
    seed selects these examples.
    """

    def __init__(
        self,
        path: str,
        inputs: Sequence[Input],
        seed: int,
        step_batches: int = 1,
        held_out: float = 0.0,
        drop_last: bool = True,
    ) -> None:
        arrays, self.digest = _read(path)
        self._check(path, arrays, inputs)
        self.seed, self.batch = seed, inputs[0].shape[0]
        self.arrays = {x.name: _converted(path, arrays[x.name], x) for x in inputs}
        self.examples = len(self.arrays[inputs[0].name])
        batches = max(1, round(held_out * self.examples / self.batch)) if held_out else 0
        random = np.random.default_rng(seed)
        rows = random.permutation(self.examples) if batches else np.arange(self.examples)
        self.held_out_examples = batches * self.batch
        self._held_out, self._trained = np.split(rows, [self.held_out_examples])
        self.step_examples: int = self.batch * step_batches
        whole_steps, rest = divmod(len(self._trained), self.step_examples)
        self.last_batch = 0 if drop_last else rest
        self.steps_per_epoch: int = whole_steps + bool(self.last_batch)
        if not whole_steps:
            beside = f" beside {self.held_out_examples:,} that are held out" if batches else ""
            raise OptionError(
                f"{path!r} has {self.examples:,} examples, but a step needs "
                f"{self.step_examples:,}{beside}; add examples, or choose a smaller batch"
            )

    def __call__(self, first: int) -> Iterator[Feeds]:
        """Yield batches without end, starting at batch number `first`."""
        batches = -(-self.epoch_examples // self.batch)
        for epoch in itertools.count(first // batches):
            order = np.random.default_rng((self.seed, epoch)).permutation(self._trained)
            start = first % batches if epoch == first // batches else 0
            used = order[: self.epoch_examples]
            yield from itertools.islice(self._batches(used), start, batches)

    def held_out_batches(self) -> Iterator[Feeds]:
        """Yield the held-out examples in batches."""
        return self._batches(self._held_out)

    def _batches(self, rows: Array) -> Iterator[Feeds]:
        for start in range(0, len(rows), self.batch):
            chosen = rows[start : start + self.batch]
            yield {name: array[chosen] for name, array in self.arrays.items()}

    @property
    def epoch_examples(self) -> int:
        """The number of examples of an epoch."""
        whole_steps = self.steps_per_epoch - bool(self.last_batch)
        return whole_steps * self.step_examples + self.last_batch

    def figures(self) -> dict[str, int]:
        """Return the numbers of examples that are trained on, held out and not used."""
        trained = self.epoch_examples
        return {
            "examples": self.examples,
            "held_out_examples": self.held_out_examples,
            "epoch_examples": trained,
            "remaining_examples": len(self._trained) - trained,
            "steps_per_epoch": self.steps_per_epoch,
        }

    def _check(self, path: str, arrays: Mapping[str, Array], inputs: Sequence[Input]) -> None:
        wanted = ", ".join(f"{x.name} {x.type}" for x in inputs)
        if not inputs or any(not x.shape or x.shape[0] != inputs[0].shape[0] for x in inputs):
            raise OptionError(
                f"rows of {path!r} require inputs with equal batch extents, but the network has "
                f"{wanted}; pass a function that yields feeds, as file.py:function"
            )
        for x in inputs:
            if x.name not in arrays:
                near = did_you_mean(x.name, arrays, before="; ")
                raise OptionError(
                    f"{path!r} has no array {x.name!r}; the network needs {wanted}, but the file "
                    f"has {', '.join(arrays) or 'none'}{near}"
                )
            found = arrays[x.name]
            if found.shape[1:] != x.shape[1:] or not _fits(found.dtype, x):
                cure = "" if _fits(found.dtype, x) else f"; convert it to {x.type.dtype.numpy}"
                raise OptionError(
                    f"{path!r}: {x.name!r} is {found.dtype}{list(found.shape)}, but a step needs "
                    f"rows of {x.type}{cure}"
                )
        counts = {len(arrays[x.name]) for x in inputs}
        if len(counts) > 1 or min(counts) < inputs[0].shape[0]:
            raise OptionError(
                f"all arrays of {path!r} must have the same number of rows, at least "
                f"{inputs[0].shape[0]}; got {', '.join(map(str, sorted(counts)))}"
            )


def _fits(dtype: np.dtype[Any], x: Input) -> bool:
    kinds = {"float": "f", "int": "iu", "bool": "b"}[x.type.dtype.kind]
    return dtype.kind in kinds or dtype == x.type.dtype.numpy


def _converted(path: str, array: Array, x: Input) -> Array:
    """Return the array with the dtype of an input.

    Raises `OptionError` if the dtype cannot represent all integers of the array.
    """
    found = array.astype(x.type.dtype.numpy)
    if array.dtype.kind in "iu" and not np.array_equal(found, array):
        raise OptionError(
            f"{path!r}: {x.name!r} has integers from {array.min()} to {array.max()}, but "
            f"{x.type.dtype.numpy} cannot represent all of them"
        )
    return found


def _read(path: str) -> tuple[dict[str, Array], str]:
    """Return the arrays of an npz file and the SHA-256 digest of the file."""
    try:
        with np.load(path, allow_pickle=False) as found:
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise OptionError(
                    f"{path!r} contains only one array without a name; write the file with np.savez"
                )
            arrays = {name: found[name] for name in found.files}
        with open(path, "rb") as file:
            return arrays, hashlib.file_digest(file, "sha256").hexdigest()
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        told = getattr(error, "strerror", None) or error
        raise OptionError(f"cannot read the arrays of {path!r}: {told}") from None


class FunctionFeeds:
    """Feeds from a user function, which is called again when its feeds are exhausted.

    Names in `unread` are removed from each mapping.
    """

    step_examples = None
    """The number of examples of a step, which is unknown."""

    def __init__(
        self, name: str, function: Callable[[], Any], unread: Collection[str] = ()
    ) -> None:
        self.name, self.function, self.unread = name, function, frozenset(unread)
        source = Path(name.rpartition(":")[0])
        self.digest = hashlib.sha256(source.read_bytes()).hexdigest()

    def __call__(self, first: int) -> Iterator[Feeds]:
        """Yield feeds without end, starting at number `first`."""
        return itertools.islice(self._all(), first, None)

    def _all(self) -> Iterator[Feeds]:
        while True:
            feeds, is_empty = self.function(), True
            if isinstance(feeds, Mapping) or not isinstance(feeds, Iterable):
                raise OptionError(
                    f"{self.name} must return an iterable of feeds, which map names to arrays; "
                    f"got {type(feeds).__name__}"
                )
            for each in feeds:
                if not isinstance(each, Mapping):
                    raise FeedError(
                        f"{self.name} must yield mappings from names to arrays, got "
                        f"{type(each).__name__}"
                    )
                is_empty = False
                yield {key: array for key, array in each.items() if key not in self.unread}
            if is_empty:
                raise OptionError(
                    f"{self.name} yielded no feeds; it must yield at least one mapping"
                )
