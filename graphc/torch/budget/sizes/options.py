"""The options `sizes`, `dynamic`, `max_sizes`, `pad` and `unplanned` of `graphc.torch.plan`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from graphc.compiler.bucketing import counted
from graphc.errors import OptionError, TorchError, number_between, quoted, whole_number
from graphc.torch.budget.options import Given, GoalOptions, Pad, Unplanned
from graphc.torch.budget.trace.example import PLAIN
from graphc.torch.budget.trace.names import arguments_of

FORM = (
    "such as {'input_ids': {1: (64, 128)}}, or list sizes, such as [{'input_ids': {1: 64}}, "
    "{'input_ids': {1: 128}}]"
)

DYNAMIC_FORM = (
    "such as {'input_ids': {1: (64, 1024)}}, or to the counts of its lengths, such as "
    "{'input_ids': {1: {96: 900, 160: 2100}}}"
)


MOST = 6
"""Number of sizes that are chosen by default."""


@dataclass(frozen=True)
class Axis:
    """A dimension that varies: of one input, or of several that always have the same length."""

    names: tuple[str, ...]
    dimensions: tuple[int, ...]

    def __str__(self) -> str:
        return f"{','.join(self.names)}[{','.join(map(str, self.dimensions))}]"


Size = dict[Axis, int]
"""The length of each axis."""


def shown(size: Size) -> str:
    """Return a size as in messages, such as ``input_ids[1]=64``."""
    return " ".join(f"{axis}={length}" for axis, length in size.items())


def as_given(size: Size) -> dict[Any, dict[Any, int]]:
    """Return a size in the form of an entry of the option `sizes`."""
    found: dict[Any, dict[Any, int]] = {}
    for axis, length in size.items():
        found.setdefault(_one(axis.names), {})[_one(axis.dimensions)] = length
    return found


@dataclass(frozen=True)
class Requested:
    """The options of a step with sizes.

    Either `sizes` has at least one size, or `histogram` has the counts of the lengths of `axis`, of
    which at most `most` sizes are chosen.
    """

    sizes: tuple[Size, ...]
    axis: Axis | None
    histogram: Mapping[int, int]
    most: int
    pad: Pad | None
    unplanned: Unplanned

    @property
    def axes(self) -> tuple[Axis, ...]:
        """All axes that vary."""
        return tuple(self.sizes[0]) if self.axis is None else (self.axis,)

    @property
    def candidates(self) -> tuple[Size, ...]:
        """The sizes, or those of which the planned ones are chosen, in ascending order."""
        if self.axis is not None:
            return tuple({self.axis: length} for length in sorted(self.histogram))
        return tuple(sorted(self.sizes, key=lambda size: sum(size.values())))

    @classmethod
    def of(cls, options: GoalOptions) -> Requested | None:
        """Return the sizes of a plan's options, or None; raises `OptionError` for wrong ones."""
        sizes, dynamic, max_sizes = options.sizes, options.dynamic, options.max_sizes
        pad, unplanned = options.pad, options.unplanned
        if unplanned not in ("raise", "plan"):
            raise OptionError(f"unplanned must be 'raise' or 'plan', got {quoted(unplanned)}")
        most = MOST if max_sizes is None else whole_number("max_sizes", max_sizes)
        if sizes is None and dynamic is None:
            given = {"pad": pad, "max_sizes": max_sizes}
            name = next((name for name, each in given.items() if each is not None), "unplanned")
            if name != "unplanned" or unplanned == "plan":
                raise OptionError(f"{name} applies to planned sizes; pass sizes or dynamic, too")
            return None
        if sizes is not None and dynamic is not None:
            raise OptionError(
                "give either sizes or dynamic, not both; sizes may list all combinations"
            )
        _check_pad(pad)
        spans = {} if dynamic is None else dict(_entries("dynamic", DYNAMIC_FORM, dynamic))
        has_counts = any(isinstance(each, Mapping) for each in spans.values())
        if max_sizes is not None and not has_counts:
            raise OptionError(
                "max_sizes applies to counts of lengths only, such as dynamic={'input_ids': "
                "{1: {96: 900, 160: 2100}}}; leave it out"
            )
        if sizes is not None:
            return cls(_checked(_sizes(sizes)), None, {}, most, pad, unplanned)
        if not has_counts:
            powers = {axis: powers_of_two(axis, span) for axis, span in spans.items()}
            return cls(_checked(_combined(powers)), None, {}, most, pad, unplanned)
        if len(spans) > 1:
            raise OptionError(
                "dynamic supports counts of lengths for one dimension only, got "
                f"{', '.join(map(str, spans))}; name inputs that share it together, such as "
                "{('x', 'y'): {1: counts}}, or pass sizes"
            )
        ((axis, counts),) = spans.items()
        return cls((), axis, counted(counts), most, pad, unplanned)


def powers_of_two(axis: Axis, span: object) -> tuple[int, ...]:
    """Return the powers of two within a range, and its end; raises `OptionError`."""
    if not isinstance(span, tuple | list) or len(span) != 2:
        raise OptionError(
            f"dynamic must map a dimension to its least and greatest length, {DYNAMIC_FORM}; "
            f"for {axis} got {quoted(span)}"
        )
    low = whole_number(f"the least length of {axis}", span[0])
    high = whole_number(f"the greatest length of {axis}", span[1], least=low)
    first = (low - 1).bit_length()
    powers = (1 << exponent for exponent in range(first, high.bit_length()))
    return (*(power for power in powers if power < high), high)


def _check_pad(pad: object) -> None:
    if isinstance(pad, Mapping):
        for name, number in pad.items():
            if not isinstance(name, str):
                raise OptionError(f"pad must map names of inputs to numbers, got {quoted(name)}")
            if number is not None and not isinstance(number, bool):
                label = f"the number for {name!r} of pad"
                number_between(label, number, -float("inf"), float("inf"))
    elif pad is not None and not callable(pad):
        raise OptionError(
            "pad must map names of inputs to numbers, such as {'labels': -100}, or be a function "
            f"of args, kwargs and the size, got {quoted(pad)}"
        )


def _sizes(sizes: object) -> list[Size]:
    """Return the sizes of a mapping, which are all combinations, or of a list."""
    if isinstance(sizes, Mapping):
        found: dict[Axis, tuple[int, ...]] = {}
        for axis, lengths in _entries("sizes", FORM, sizes):
            if not isinstance(lengths, tuple | list | range) or not lengths:
                raise OptionError(
                    f"sizes must map a dimension to its lengths, {FORM}; for {axis} got "
                    f"{quoted(lengths)}"
                )
            found[axis] = tuple(whole_number(f"a length of {axis}", each) for each in lengths)
        return _combined(found)
    if not isinstance(sizes, Sequence) or isinstance(sizes, str) or not sizes:
        raise OptionError(f"sizes must map inputs to lengths, {FORM}; got {quoted(sizes)}")
    listed = [
        {
            axis: whole_number(f"the length of {axis} in a list of sizes", length)
            for axis, length in _entries("sizes", FORM, each)
        }
        for each in sizes
    ]
    for each in listed:
        if each.keys() != listed[0].keys():
            raise OptionError(
                f"all sizes must name the same inputs and dimensions, got {shown(listed[0])} and "
                f"{shown(each)}"
            )
    return listed


def _combined(lengths: Mapping[Axis, Sequence[int]]) -> list[Size]:
    return [dict(zip(lengths, each, strict=True)) for each in itertools.product(*lengths.values())]


def _checked(sizes: Sequence[Size]) -> tuple[Size, ...]:
    for one, other in itertools.combinations(sizes, 2):
        if one == other:
            raise OptionError(f"sizes contains {shown(one)} twice; list each size once")
    return tuple(sizes)


def _entries(option: str, form: str, given: object) -> Iterator[tuple[Axis, Any]]:
    """Yield each axis that a mapping names, and what it maps the axis to."""
    if not isinstance(given, Mapping) or not given:
        raise OptionError(f"{option} must map inputs to dimensions, {form}; got {quoted(given)}")
    seen: set[tuple[str, int]] = set()
    for names, dimensions in given.items():
        of_names = _several(names)
        if not of_names or not all(isinstance(name, str) for name in of_names):
            raise OptionError(
                f"{option} must name inputs by their names in the module's forward, or by tuples "
                f"of names, {form}; got {quoted(names)}"
            )
        if not isinstance(dimensions, Mapping) or not dimensions:
            raise OptionError(
                f"{option} must map each input to its dimensions, {form}; for "
                f"{', '.join(of_names)} got {quoted(dimensions)}"
            )
        for numbers, content in dimensions.items():
            of_numbers = tuple(
                whole_number(f"a dimension of {', '.join(of_names)}", each, least=-64, most=63)
                for each in _several(numbers)
            )
            axis = Axis(of_names, of_numbers)
            own = set(itertools.product(of_names, of_numbers))
            if not own or own & seen:
                raise OptionError(f"{option} must name each dimension once, got {axis} again")
            seen |= own
            yield axis, content


def _several(given: object) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, tuple) else (given,)


def _one(given: tuple[Any, ...]) -> Any:
    return given[0] if len(given) == 1 else given


Described = dict[str, object]
"""The properties of a call that its plan depends on, by the names of its arguments."""


class UnplannedError(TorchError):
    """No planned size holds the arguments of a call."""


def description(given: Given) -> Described:
    """Return the properties of a call that its plan depends on."""
    return {name: _described(each) for name, each in arguments_of(given)}


def _described(leaf: Any) -> object:
    if isinstance(leaf, torch.Tensor):
        stride = tuple(s if n > 1 else 0 for s, n in zip(leaf.stride(), leaf.shape, strict=True))
        gradient = " with a gradient" if leaf.requires_grad else ""
        return (
            f"{str(leaf.dtype).removeprefix('torch.')} {list(leaf.shape)} on {leaf.device}, "
            f"strides {list(stride)}{gradient}"
        )
    if isinstance(leaf, np.ndarray):
        return f"an array of {leaf.dtype} {list(leaf.shape)}"
    return leaf if isinstance(leaf, PLAIN) else type(leaf).__qualname__


def refuse_other(planned: Described, found: Described, size: Size) -> None:
    """Raise `UnplannedError` if a call differs from the planned one of its size."""
    if planned == found:
        return
    name = next(
        name
        for name in (*planned, *found)
        if planned.get(name, planned) != found.get(name, planned)
    )
    lengths = [str(each[name]) if name in each else "missing" for each in (found, planned)]
    raise UnplannedError(
        f"{name} is {lengths[0]} in this call, but {lengths[1]} in the plan for {shown(size)}; "
        "only the planned dimensions may vary. Pass it as planned, or unplanned='plan' to plan "
        "such calls when they occur"
    )
