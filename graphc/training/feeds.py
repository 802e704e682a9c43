"""Feeds for the steps of a run, from arrays in a file or from a user function."""

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
    """Batches of array rows, reshuffled in each pass.

    An input (batch, ...) is fed the next rows of the array (examples, ...) with its name. `digest`
    identifies the arrays.
    """

    def __init__(self, path: str, inputs: Sequence[Input], seed: int) -> None:
        arrays, self.digest = _read(path)
        self._check(path, arrays, inputs)
        self.seed, self.batch = seed, inputs[0].shape[0]
        self.arrays = {x.name: arrays[x.name].astype(x.type.dtype.numpy) for x in inputs}
        self.examples = len(self.arrays[inputs[0].name])

    def __call__(self, first: int) -> Iterator[Feeds]:
        """Yield an infinite sequence of batches, starting at batch `first`."""
        a_pass = self.examples // self.batch
        for number in itertools.count(first // a_pass):
            order = np.random.default_rng((self.seed, number)).permutation(self.examples)
            for index in range(first % a_pass if number == first // a_pass else 0, a_pass):
                rows = order[index * self.batch : (index + 1) * self.batch]
                yield {name: array[rows] for name, array in self.arrays.items()}

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
                raise OptionError(
                    f"{path!r}: {x.name!r} is {found.dtype}{list(found.shape)}, but a step needs "
                    f"rows of {x.type}"
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
    """Feeds from a user function, which is called again after its last feeds.

    Names in `unread` are removed from each mapping.
    """

    def __init__(
        self, name: str, function: Callable[[], Any], unread: Collection[str] = ()
    ) -> None:
        self.name, self.function, self.unread = name, function, frozenset(unread)
        source = Path(name.rpartition(":")[0])
        self.digest = hashlib.sha256(source.read_bytes()).hexdigest()

    def __call__(self, first: int) -> Iterator[Feeds]:
        """Return an infinite iterator of feeds, starting at number `first`."""
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
                raise OptionError(f"{self.name} yielded no feeds")
