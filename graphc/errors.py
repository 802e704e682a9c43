"""Errors that a user can act on: where it happened, the rule, what was given, the cure."""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from types import FrameType

import numpy as np


class GraphcError(Exception):
    """Base of every error that graphc raises on purpose."""


class PlacedError(GraphcError):
    """Base of errors about what a program says; the message begins with its file and line.

    `scope` is the `graphc.scope` in which the error was raised, `message` what went wrong alone.
    """

    scope = ""

    @property
    def message(self) -> str:
        """What went wrong, without where."""
        return Exception.__str__(self)  # a KeyError's own would quote it

    def __str__(self) -> str:
        scope = f"in scope {self.scope!r}" if self.scope else ""
        place = " ".join(filter(None, (place_of(self), scope)))
        return f"{place}: {self.message}" if place else self.message


def place_of(error: BaseException) -> str:
    """FILE:LINE of the innermost frame outside graphc that an error has passed; else empty."""
    found, raised = "", error.__traceback__
    while raised is not None:
        if not _is_passed_through(raised.tb_frame):
            found = f"{raised.tb_frame.f_code.co_filename}:{raised.tb_lineno}"
        raised = raised.tb_next
    return found


def level_of_caller() -> int:
    """The ``stacklevel`` at which a warning of the function that asks is of graphc's caller."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_passed_through(frame):
        frame, level = frame.f_back, level + 1
    return level


def _is_passed_through(frame: FrameType) -> bool:
    """Whether a line is not one at which a program calls graphc."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _PASSED_THROUGH or frame.f_code.co_filename.startswith("<frozen ")


_PASSED_THROUGH = ("graphc", "contextlib", "functools", "torch")
"""Packages whose lines are not where a program calls graphc; nor are those of frozen modules."""


class ShapeError(PlacedError):
    """Shapes do not fit an op's rule."""


class DTypeError(PlacedError):
    """A dtype does not fit an op's rule."""


class OptionError(PlacedError):
    """An option, name or argument has a value outside its allowed set."""


class UnknownNameError(OptionError, KeyError):
    """A mapping of graphc has nothing of that name; its `get` and `in` take it as a KeyError."""


class UnknownAttributeError(OptionError, AttributeError):
    """A value has no attribute or method of that name."""


class GraphError(PlacedError):
    """A graph is not well formed: single assignment, order, types or effects are violated."""


class TextError(GraphError):
    """A graph's text form cannot be read."""


class GradientError(PlacedError):
    """A derivative was asked for that does not exist."""


class PlanError(GraphcError):
    """A memory plan would corrupt a value.

    `culprits` holds the names of the values (or nodes) that collide, the injured one first.
    """

    def __init__(self, message: str, culprits: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.culprits = tuple(culprits)


class ArenaError(GraphcError):
    """The arena cannot be allocated."""


class FeedError(GraphcError):
    """The arrays given to a step do not match the program's inputs."""


class TornError(GraphcError):
    """A step or a load was stopped while it replaced states: some are new, some are old."""


class ProgramBusy(GraphcError):  # noqa: N818 - a state of a program, no mistake of its making
    """A program was called in the middle of its own step."""


class RanksError(GraphcError):
    """The ranks of a program do not fit together, or one has lost the others."""


class NonFiniteError(GraphcError):
    """`check_finite=True` found NaN or infinity."""


class CheckpointError(GraphcError):
    """A parameter file cannot be read, written, or does not belong to this network."""


class PlanFileError(GraphcError):
    """A file of a memory plan cannot be read, written, or is not what graphc writes."""


class OnnxError(GraphcError):
    """An ONNX file cannot be read or written, or asks for what graphc does not have.

    `undetermined` names inputs on which shapes depend, so that their numbers have to be given.
    """

    def __init__(self, message: str, undetermined: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.undetermined = frozenset(undetermined)


class TorchError(GraphcError):
    """A module of torch cannot be planned or imported: what stands in the way, and where."""


class PackingError(GraphcError):
    """Buffers to be packed, or a file of them, are not well formed.

    `buffers` holds the indices of those that are wrong.
    """

    def __init__(self, message: str, buffers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.buffers = tuple(buffers)


class CapacityError(PackingError):
    """Buffers were not packed within a capacity.

    `height` is the lowest that was found and `bound` what no packing can go below, both in bytes.
    Within `times`, spans [begin, end), more than the capacity is live, and `buffers` are the
    largest where the most is.
    """

    def __init__(
        self,
        message: str,
        capacity: int,
        height: int,
        bound: int,
        times: Sequence[tuple[int, int]] = (),
        buffers: Sequence[int] = (),
    ) -> None:
        super().__init__(message, buffers)
        self.capacity, self.height, self.bound = capacity, height, bound
        self.times = tuple(times)


class GpuUnavailable(GraphcError):  # noqa: N818 - a state of the machine, no mistake
    """No GPU can be used; `reason` says why, the message also how that is cured."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"no GPU can be used: {reason}; {cure}")
        self.reason = reason


class DependencyError(GraphcError):
    """An optional package is missing; the message names it, and the extra that brings it."""


def to_install(packages: str, extra: str) -> str:
    """How packages that are missing are installed: by their own names, or by an extra's."""
    return f"pip install {packages}, or pip install '.[{extra}]' in a checkout of graphc"


def window(lines: Sequence[str], at: int, radius: int = 3) -> str:
    """The lines around index `at`, with an arrow at the fault: appended to errors about a graph."""
    first, last = max(0, at - radius), min(len(lines), at + radius + 1)
    shown = (f"{'-->' if i == at else '   '} {escaped(lines[i])}" for i in range(first, last))
    return "\n".join(shown)


def escaped(text: str) -> str:
    """A text with escapes for what would steer a terminal: controls, and marks without a width."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


class ProblemError(GraphcError):
    """A recomputation problem, or a sequence for one, is not well formed."""


class BudgetError(GraphcError):
    """No plan fits the budget.

    `least_bytes` is the smallest peak found, `bound_bytes` what no plan can go below; `node` runs
    at the peak of that plan, and `values` are (names, bytes) of the largest that live there.
    """

    def __init__(
        self,
        message: str,
        least_bytes: int,
        bound_bytes: int,
        node: str = "",
        values: Sequence[tuple[str, int]] = (),
    ) -> None:
        super().__init__(message)
        self.least_bytes, self.bound_bytes = least_bytes, bound_bytes
        self.node, self.values = node, tuple(values)


LONGEST = 60
"""The most characters of a faulty value that a message shows."""


def quoted(given: object) -> str:
    """A faulty value as a message shows it: cut where it is long."""
    try:
        text = repr(given)
    except ValueError:  # a whole number of more digits than Python prints
        return f"a number of more than {sys.get_int_max_str_digits()} digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def given_twice(first: object, second: object) -> str:
    """What a message says of an option that stands there with two values."""
    return f"is given twice, as {quoted(first)} and {quoted(second)}; give one"


def whole_number(name: str, given: object, least: int = 1, most: float = math.inf) -> int:
    """Return `given` as an int if it is a whole number within these bounds, else `OptionError`."""
    if (
        isinstance(given, bool)
        or not isinstance(given, Integral)
        or not least <= int(given) <= most
    ):
        reach = "up" if most == math.inf else f"to {most}"
        raise OptionError(f"{name} is a whole number from {least} {reach}, got {quoted(given)}")
    return int(given)


def truth(name: str, given: object, beside: str = "") -> bool:
    """Return `given` as a bool if it is True or False, also NumPy's, else raise `OptionError`.

    `beside` says what else it might have been.
    """
    if not isinstance(given, bool | np.bool_):
        raise OptionError(f"{name} is True or False{beside}, got {quoted(given)}")
    return bool(given)


def number_between(name: str, given: object, low: float, high: float) -> float:
    """Return `given` as a float if it is a number from `low` to `high`, else `OptionError`."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not low <= given <= high:  # type: ignore[operator]
        raise OptionError(f"{name} must lie between {low:g} and {high:g}, got {quoted(given)}")
    return float(given)  # type: ignore[arg-type]


def check_seed(given: object) -> int:
    """Return the seed; raises `OptionError` unless it is a whole number of 64 bits."""
    if not isinstance(given, Integral) or not 0 <= int(given) < 2**64:
        raise OptionError(f"seed must be a whole number from 0 to 2**64 - 1, got {quoted(given)}")
    return int(given)


def choose(kind: str, given: str, allowed: Sequence[str]) -> str:
    """Return `given` if it is allowed, else raise `OptionError` that lists what is."""
    if given not in allowed:
        near = did_you_mean(given, allowed, before="; ")
        raise OptionError(
            f"unknown {kind} {quoted(given)}; choose one of: {', '.join(allowed)}{near}"
        )
    return given


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """What a module raises for a name that it does not have, with the nearest that it has."""
    near = did_you_mean(name, known, before="; ")
    return AttributeError(f"module {module!r} has no attribute {name!r}{near}")


def did_you_mean(given: object, choices: Iterable[str], before: str = "") -> str:
    """The question whether one of the nearest choices was meant, after `before`; empty for none.

    Upper and lower case count as alike; choices that are much less near than the nearest are left
    out.
    """
    asked, folded = str(given).casefold(), dict[str, list[str]]()
    for choice in choices:
        folded.setdefault(choice.casefold(), []).append(choice)
    alike = difflib.get_close_matches(asked, folded)
    nearness = [difflib.SequenceMatcher(None, key, asked).ratio() for key in alike]
    near = [
        choice
        for key, ratio in zip(alike, nearness, strict=True)
        if ratio > nearness[0] - MUCH_LESS
        for choice in folded[key]
    ]
    return f"{before}did you mean {' or '.join(near)}?" if near else ""


def or_all(given: object, choices: Iterable[str]) -> str:
    """The question whether one of the nearest choices was meant, else which there are."""
    listed = list(choices)
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    there = f"there are: {', '.join(listed[:MOST_NAMES])}{more}" if listed else "there is none"
    return did_you_mean(given, listed) or there


MOST_NAMES = 20
"""Names that a message lists."""

MUCH_LESS = 0.1
"""Of difflib's ratio, from 0 to 1: for names of ten letters, one letter."""
