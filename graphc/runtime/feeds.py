"""Feeds of a step: checks of the arrays that are passed, and random feeds to try a plan."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from operator import le
from types import MappingProxyType
from typing import Any

import numpy as np

from graphc.errors import FeedError, GraphcError, NonFiniteError, did_you_mean, quoted
from graphc.ir.graph import Graph, Input
from graphc.ir.types import number_of
from graphc.ops.update import LARGEST
from graphc.runtime.conversion import as_numpy, converted, is_real
from graphc.runtime.index_ranges import FedRange, index_limits
from graphc.runtime.padding import Padded

Array = np.ndarray[Any, np.dtype[Any]]

Feed = Array | Padded

Rests = Mapping[Input, Array]
"""Input → the number that pads smaller feeds, as a scalar array."""

NO_RESTS: Rests = MappingProxyType({})


class Feeds:
    """The inputs of a graph, and the checks of the arrays (feeds) that a step gets for them.

    `ranges` has the bounds of integer inputs that are used as indices.
    """

    def __init__(
        self, graph: Graph, check_finite: bool, ranges: Mapping[Input, list[FedRange]]
    ) -> None:
        self._inputs = {source.name: source for source in graph.inputs}
        self._check_finite, self._ranges = check_finite, ranges
        self._rates = _learning_rates(graph)
        self._defaults = {
            source: _number(source, source.default)
            for source in graph.inputs
            if source.default is not None
        }

    def checked(self, feeds: Mapping[str, Any], rests: Rests = NO_RESTS) -> dict[Input, Feed]:
        """Return an array of the right type for every input, or its default; raises `FeedError`.

        An input in `rests` may get a smaller array, which is padded with the number there. With
        `check_finite`, raises `NonFiniteError` for NaN or infinity.
        """
        self._require_known(feeds)
        return {source: self._checked(source, feeds, rests) for source in self._inputs.values()}

    def _require_known(self, names: Collection[str]) -> None:
        unknown = [name for name in names if name not in self._inputs]
        if unknown:
            missing = [name for name in self._inputs if name not in names]
            near = did_you_mean(unknown[0], missing, before="; ")
            raise FeedError(
                f"the program has no input {', '.join(map(repr, unknown))}; its inputs are "
                f"{', '.join(map(repr, self._inputs)) or 'none'}{near}"
            )

    def rests(self, pad: Mapping[str, float]) -> Rests:
        """Return the numbers that pad inputs, as scalar arrays of their dtypes.

        Raises `FeedError` for an unknown input, and for a number that its dtype cannot represent or
        that is not a valid index.
        """
        if not isinstance(pad, Mapping):
            raise FeedError(f"pad must map names of inputs to numbers, got {quoted(pad)}")
        self._require_known(pad)
        found = {}
        for name, number in pad.items():
            source = self._inputs[name]
            found[source] = rest = _number(source, number)
            for allowed in self._ranges.get(source, ()):
                if allowed.range.broken_by(rest) is not None:
                    raise FeedError(
                        f"pad[{name!r}] is {number}, but {allowed.reader.label} uses {name!r} as "
                        f"indices, which must be in {allowed.range.bounds}; pad with a number in "
                        "that range, or build the loss with ignore_index"
                    )
        return found

    def _checked(self, source: Input, feeds: Mapping[str, Any], rests: Rests) -> Feed:
        if source.name not in feeds and source not in self._defaults:
            raise FeedError(f"input {source.name!r} is missing; feed an array of {source.type}")
        given = feeds[source.name] if source.name in feeds else self._defaults[source]
        if source in self._rates and isinstance(given, int | float):
            _check_rate(source, given)
        array = _as_array(source, given, is_padded=source in rests)
        if source in self._rates:
            _check_rate(source, array.item())
        if self._check_finite:
            _require_finite(source, array)
        feed = array if array.shape == source.shape else Padded(array, rests[source])
        for allowed in self._ranges.get(source, ()):
            allowed.check(source, feed)
        return feed


def fits(shape: tuple[int, ...], whole: tuple[int, ...]) -> bool:
    """Return True if an array can be padded to the shape `whole`."""
    return len(shape) == len(whole) and all(map(le, shape, whole))


def _learning_rates(graph: Graph) -> frozenset[Input]:
    """Return the inputs that are learning rates of updates and have a default."""
    return frozenset(
        value
        for node in graph.nodes
        for index, value in enumerate(node.inputs)
        if isinstance(value, Input)
        and value.default is not None
        and node.op.input_name(index) in node.op.learning_rates
    )


def _check_rate(source: Input, given: float) -> None:
    if not 0 <= given <= LARGEST:
        raise FeedError(
            f"input {source.name!r} is a learning rate, which must be between 0 and {LARGEST:g}, "
            f"got {quoted(given)}; feed a number in that range, or omit it to use "
            f"{source.default:g}"
        )


def _as_array(source: Input, given: Any, is_padded: bool = False) -> Array:
    """Return a feed as an array of the input's type; with `is_padded`, it may be smaller.

    Another dtype is converted if that changes no number. Raises `FeedError` for other feeds.
    """
    if isinstance(given, int | float) and source.shape == ():
        return _number(source, given)
    if isinstance(given, np.generic):
        given = np.asarray(given)
    elif not isinstance(given, np.ndarray) and hasattr(given, "__array__"):
        given = _of_tensor(source, given)
    if not isinstance(given, np.ndarray):
        raise FeedError(f"input {source.name!r} must be {source.type}, got {_what(source, given)}")
    if isinstance(given, np.ma.MaskedArray):
        raise FeedError(
            f"input {source.name!r} must be {source.type}, got a masked array; replace masked "
            "elements with .filled(number)"
        )
    if given.shape != source.shape and not (is_padded and fits(given.shape, source.shape)):
        raise FeedError(
            f"input {source.name!r} must be {source.type}, got the shape {list(given.shape)}; "
            "shapes are fixed at compile time"
        )
    return given if given.dtype == source.type.dtype.numpy else _exactly(source, given)


def _of_tensor(source: Input, given: Any) -> Array:
    """Convert a tensor of another library to an array; raises `FeedError`."""
    try:
        return as_numpy(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError(
            f"input {source.name!r} must be {source.type}, got {type(given).__name__} that cannot "
            f"be converted to a NumPy array: {error}; feed a NumPy array"
        ) from None


def _exactly(source: Input, given: Array) -> Array:
    """Convert an array to the dtype of an input; raises `FeedError` if that changes a number."""
    got = f"input {source.name!r} must be {source.type}, got the dtype {given.dtype}"
    if not is_real(given.dtype):
        raise FeedError(f"{got}; {_conversion(source, given)}")
    found, changed = converted(given, source.type.dtype.numpy)
    if not changed.any():
        return found
    first = np.unravel_index(np.argmax(changed), given.shape)
    raise FeedError(
        f"{got}: {given[first].item()} at {[int(i) for i in first]} would become "
        f"{found[first].item()}, and {np.count_nonzero(changed)} of {given.size} numbers would "
        "change; " + _conversion(source, given)
    )


def _number(source: Input, given: float) -> Array:
    """Convert a number to a scalar array; raises `FeedError` if the dtype cannot represent it."""
    dtype = source.type.dtype
    try:
        number = number_of(f"input {source.name!r}", given, dtype)
    except GraphcError as error:
        raise FeedError(f"{error}; feed a number that {dtype.name} can represent") from None
    return np.asarray(number).astype(dtype.numpy)


def _what(source: Input, given: object) -> str:
    """Describe a feed that is not an array, and the fix."""
    dtype = source.type.dtype.name
    if source.shape == () and not isinstance(given, list | tuple):
        return f"{type(given).__name__}; feed an int, a float or a NumPy array"
    if isinstance(given, list | tuple):
        try:
            np.asarray(given, source.type.dtype.numpy)
        except (ValueError, TypeError, OverflowError) as error:
            return (
                f"{type(given).__name__} that cannot be converted to an array of {dtype} "
                f"({error}); feed rows of equal length, padded if necessary"
            )
    return f"{type(given).__name__}; feed a NumPy array, for example numpy.asarray(..., {dtype!r})"


def _conversion(source: Input, given: Array) -> str:
    """Describe how to convert an array whose numbers the dtype of the input cannot represent."""
    name = source.type.dtype.name
    if given.dtype.kind == "c":
        return f"take the real part: .real.astype({name!r})"
    if given.dtype.kind in "OSUV":
        return f"convert it to numbers in rows of equal length: numpy.asarray(..., {name!r})"
    if source.type.dtype.kind == "float":
        return f"round them with .astype({name!r})"
    return f"feed numbers that {name} can represent"


def _require_finite(source: Input, given: Array) -> None:
    if given.dtype.kind in "biu":
        return
    bad = np.flatnonzero(~np.isfinite(np.asarray(given, np.float64)))
    if bad.size:
        where = tuple(int(i) for i in np.unravel_index(bad[0], given.shape))
        raise NonFiniteError(
            f"input {source.name!r} contains {given[where]} at {list(where)}; {bad.size} elements "
            "are not finite"
        )


def random_feeds(graph: Graph, seed: int) -> dict[Input, Array]:
    """Draw feeds for all inputs: normal floats, and integers that are valid as indices.

    An input with a default gets the default.
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
