"""What a step is fed with: checks of what is given, and random numbers to try a plan with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from graphc.errors import FeedError, GraphcError, NonFiniteError, did_you_mean
from graphc.ir.builder import number_of
from graphc.ir.graph import Graph, Input, Value

Array = np.ndarray[Any, np.dtype[Any]]


class Feeds:
    """The inputs of a graph, and what may be fed to them."""

    def __init__(self, graph: Graph, check_finite: bool, check_limits: bool) -> None:
        self._inputs = {source.name: source for source in graph.inputs}
        self._check_finite = check_finite
        self._limits = index_limits(graph, unchanged=True) if check_limits else {}

    def checked(self, feeds: Mapping[str, Any]) -> dict[Input, Array | float]:
        """An array of every input's type, or its default; raises `FeedError`.

        With `check_finite`, raises `NonFiniteError` for NaN or infinity.
        """
        unknown = [name for name in feeds if name not in self._inputs]
        if unknown:
            missing = [name for name in self._inputs if name not in feeds]
            near = did_you_mean(unknown[0], missing, before="; ")
            raise FeedError(
                f"the program has no input {', '.join(map(repr, unknown))}; its inputs are "
                f"{', '.join(map(repr, self._inputs)) or 'none'}{near}"
            )
        return {source: self._checked(source, feeds) for source in self._inputs.values()}

    def _checked(self, source: Input, feeds: Mapping[str, Any]) -> Array | float:
        if source.name not in feeds:
            if source.default is None:
                raise FeedError(f"input {source.name!r} is missing; feed an array of {source.type}")
            return source.default
        given = feeds[source.name]
        if isinstance(given, int | float) and source.shape == ():
            try:
                number = number_of(f"input {source.name!r}", given, source.type.dtype)
            except GraphcError as error:
                raise FeedError(str(error)) from None
            given = np.asarray(number).astype(source.type.dtype.numpy)
        if isinstance(given, np.generic):
            given = np.asarray(given)
        if not isinstance(given, np.ndarray):
            raise FeedError(
                f"input {source.name!r} is {source.type}, got {type(given).__name__}; feed a NumPy "
                f"array, for example numpy.asarray(..., {source.type.dtype.name!r})"
            )
        if given.dtype != source.type.dtype.numpy:
            raise FeedError(
                f"input {source.name!r} is {source.type}, got the dtype {given.dtype}; convert it "
                f"with .astype({source.type.dtype.name!r})"
            )
        if given.shape != source.shape:
            raise FeedError(
                f"input {source.name!r} is {source.type}, got the shape {list(given.shape)}; "
                "shapes are fixed when a program is compiled"
            )
        self._check_numbers(source, given)
        return given

    def _check_numbers(self, source: Input, given: Array) -> None:
        if self._check_finite and given.dtype.kind not in "biu":
            bad = np.flatnonzero(~np.isfinite(np.asarray(given, np.float64)))
            if bad.size:
                where = tuple(int(i) for i in np.unravel_index(bad[0], given.shape))
                raise NonFiniteError(
                    f"input {source.name!r} holds {given[where]} at {list(where)}, "
                    f"{bad.size} such elements in all"
                )
        limit = self._limits.get(source)
        if limit is not None and given.size and (given.min() < 0 or given.max() >= limit):
            raise FeedError(
                f"input {source.name!r} holds numbers from {given.min()} to {given.max()}; "
                f"they number rows or classes and must lie in [0, {limit})"
            )


def index_limits(graph: Graph, unchanged: bool = False) -> dict[Value, int]:
    """Limits of integer values, handed back through what they were read through.

    With `unchanged` only through views and copies, which leave every number as it is.
    """
    limits: dict[Value, int] = {}
    for node in reversed(graph.nodes):
        passes_on = not unchanged or node.op.views is not None or node.op.name == "copy"
        found = [limits[value] for value in node.outputs if value in limits and passes_on]
        own = node.op.index_limit(node)
        found += [] if own is None else [own]
        for value in node.inputs if found else ():
            if value.type.dtype.kind == "int":
                limits[value] = min([*found, limits.get(value, found[0])])
    return limits


def random_feeds(graph: Graph, seed: int) -> dict[Input, Array]:
    """Inputs to run with: normal floats, integers that the ops which look up with them accept.

    An input with a default gets it.
    """
    limits = index_limits(graph)
    generator = np.random.default_rng(seed)
    feeds = {}
    for source in graph.inputs:
        dtype = source.type.dtype
        if source.default is not None:
            drawn: Array = np.full(source.shape, source.default)
        elif dtype.kind == "float":
            drawn = generator.standard_normal(source.shape)
        else:
            drawn = generator.integers(0, limits.get(source, 2), source.shape)
        feeds[source] = np.asarray(drawn).astype(dtype.numpy)
    return feeds
