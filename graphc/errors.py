"""Exceptions of graphc. A message names the location, the rule, the value given and the fix."""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from types import FrameType

import numpy as np


class GraphcError(Exception):
    """Base class of all exceptions that graphc raises deliberately."""


class PlacedError(GraphcError):
    """Base class of errors in a user's program; the message begins with its file and line.

    `scope` is the `graphc.scope` in which the error was raised. `message` is the text without the
    location.
    """

    scope = ""

    @property
    def message(self) -> str:
        """The message without its location."""
        return Exception.__str__(self)  # `KeyError.__str__` would quote the message

    def __str__(self) -> str:
        scope = f"in scope {self.scope!r}" if self.scope else ""
        place = " ".join(filter(None, (place_of(self), scope)))
        return f"{place}: {self.message}" if place else self.message


def place_of(error: BaseException) -> str:
    """Return FILE:LINE of the innermost user frame in an error's traceback; empty if there is none.

    User frames are those outside the packages in `_PASSED_THROUGH`.
    """
    found, raised = "", error.__traceback__
    while raised is not None:
        if not _is_passed_through(raised.tb_frame):
            found = f"{raised.tb_frame.f_code.co_filename}:{raised.tb_lineno}"
        raised = raised.tb_next
    return found


def place_of_caller() -> str:
    """Return FILE:LINE of the innermost user frame that is running; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and _is_passed_through(frame):
        frame = frame.f_back
    return "" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def level_of_caller() -> int:
    """Return the ``stacklevel`` that attributes a warning of the calling function to user code."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_passed_through(frame):
        frame, level = frame.f_back, level + 1
    return level


def _is_passed_through(frame: FrameType) -> bool:
    """Return True if a frame is inside graphc or Python, not in the user's program."""
    package = str(frame.f_globals.get("__name__")).partition(".")[0]
    return package in _PASSED_THROUGH or frame.f_code.co_filename.startswith("<frozen ")


_PASSED_THROUGH = ("graphc", "contextlib", "functools", "torch")
"""Packages whose frames are skipped when a user frame is searched, besides frozen modules."""


class ShapeError(PlacedError):
    """Shapes violate an op's shape rule."""


class DTypeError(PlacedError):
    """A dtype violates an op's type rule."""


class OptionError(PlacedError):
    """An option, name or argument has a value outside its allowed set."""


class UnknownNameError(OptionError, KeyError):
    """A mapping of graphc has no such name. It is a `KeyError`, so `get` and `in` work."""


class UnknownAttributeError(OptionError, AttributeError):
    """A value has no attribute or method of that name."""


class GraphError(PlacedError):
    """A graph is malformed: it violates single assignment, order, types or effects."""


class TextError(GraphError):
    """The text form of a graph cannot be parsed."""


class GradientError(PlacedError):
    """A requested derivative does not exist."""


class PlanError(GraphcError):
    """A memory plan would corrupt a value.

    `culprits` holds the names of the values or nodes that collide, the corrupted one first.
    """

    def __init__(self, message: str, culprits: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.culprits = tuple(culprits)


class ArenaError(GraphcError):
    """The arena cannot be allocated."""


class FeedError(GraphcError):
    """The arrays given to a step do not match the program's inputs."""


class TornError(GraphcError):
    """A step or a load was interrupted while it replaced states: some are new, some are old."""


class ProgramBusy(GraphcError):  # noqa: N818 - a state of a program, not an error in it
    """A program was called while its own step was running."""


class RanksError(GraphcError):
    """The ranks of a program are inconsistent, or one has lost contact with the others."""


class NonFiniteError(GraphcError):
    """`check_finite=True` found NaN or infinity."""


class CheckpointError(GraphcError):
    """A parameter file cannot be read or written, or does not match this network."""


class PlanFileError(GraphcError):
    """A memory plan file cannot be read or written, or does not have graphc's format."""


class OnnxError(GraphcError):
    """An ONNX file cannot be read or written, or needs a feature that graphc lacks.

    `undetermined` names inputs whose values determine shapes. The caller has to give their values.
    """

    def __init__(self, message: str, undetermined: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.undetermined = frozenset(undetermined)


class TorchError(GraphcError):
    """A torch module cannot be planned or imported; the message names the cause and location."""


class PackingError(GraphcError):
    """A packing problem, or a file of one, is malformed.

    `buffers` holds the indices of the invalid buffers.
    """

    def __init__(self, message: str, buffers: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.buffers = tuple(buffers)


class CapacityError(PackingError):
    """No packing within the capacity was found.

    `height` is the smallest height found, and `bound` a lower bound on any packing, both in bytes.
    During `times`, half-open spans `[begin, end)`, the live bytes exceed the capacity. `buffers`
    are the largest at the peak.
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


class GpuUnavailable(GraphcError):  # noqa: N818 - a state of the machine, not an error
    """No GPU is usable. `reason` gives the cause; the message adds the fix."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"no GPU is usable: {reason}; {cure}")
        self.reason = reason


class DependencyError(GraphcError):
    """An optional package is missing; the message names it and the extra that installs it."""


def to_install(packages: str, extra: str) -> str:
    """Return a sentence on how to install packages, or the extra of graphc that has them."""
    return f"run pip install {packages}, or pip install '.[{extra}]' in a checkout of graphc"


def window(lines: Sequence[str], at: int, radius: int = 3) -> str:
    """Return the lines around index `at`, with an arrow at that line, for errors about a graph."""
    first, last = max(0, at - radius), min(len(lines), at + radius + 1)
    shown = (f"{'-->' if i == at else '   '} {escaped(lines[i])}" for i in range(first, last))
    return "\n".join(shown)


def escaped(text: str) -> str:
    """Escape characters that would control a terminal: control and zero-width characters."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text
    )


class ProblemError(GraphcError):
    """A recomputation problem, or a sequence for one, is malformed."""


class BudgetError(GraphcError):
    """No plan fits the budget.

    `least_bytes` is the smallest peak found, and `bound_bytes` a lower bound on the peak of any
    plan. `node` executes at the peak of the smallest plan. `values` holds (names, bytes) of the
    largest buffers there, also workspaces and gaps, as the message lists them.
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
"""Maximum number of characters of an invalid value in a message."""


def quoted(given: object) -> str:
    """Format an invalid value as one line of a message, truncated to `LONGEST` characters."""
    try:
        text = re.sub(r"\n\s*", " ", repr(given))  # arrays have lines
    except ValueError:  # an integer with more digits than Python converts to text
        return f"a number of more than {sys.get_int_max_str_digits()} digits"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def given_twice(first: object, second: object) -> str:
    """Return the message for an option given with two values."""
    return f"is given twice, as {quoted(first)} and {quoted(second)}; give one"


def whole_number(name: str, given: object, least: int = 1, most: float = math.inf) -> int:
    """Return `given` as an int if it is a whole number within these bounds, else `OptionError`."""
    if (
        isinstance(given, bool)
        or not isinstance(given, Integral)
        or not least <= int(given) <= most
    ):
        span = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
        raise OptionError(f"{name} must be an integer {span}, got {quoted(given)}")
    return int(given)


def truth(name: str, given: object, beside: str = "") -> bool:
    """Return `given` as a bool if it is a Python or NumPy bool, else raise `OptionError`.

    `beside` is text for the message that lists other allowed values.
    """
    if not isinstance(given, bool | np.bool_):
        raise OptionError(f"{name} must be True or False{beside}, got {quoted(given)}")
    return bool(given)


def number_between(name: str, given: object, low: float, high: float) -> float:
    """Return `given` as a float if it is a number from `low` to `high`, else `OptionError`."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not low <= given <= high:  # type: ignore[operator]
        kind = "" if is_number else "a number "
        most = f"{high:g}" if float(f"{high:g}") <= high else repr(high)  # 0.999999999 is not 1
        raise OptionError(f"{name} must be {kind}between {low:g} and {most}, got {quoted(given)}")
    return float(given)  # type: ignore[arg-type]


def finite_number(name: str, given: object, error: type[GraphcError] = OptionError) -> float:
    """Return `given` as a float if it is a finite number of at least 0, else raise `error`."""
    is_number = isinstance(given, Real) and not isinstance(given, bool)
    if not is_number or not 0 <= given < math.inf:  # type: ignore[operator]
        raise error(f"{name} must be a finite number of at least 0, got {quoted(given)}")
    return float(given)  # type: ignore[arg-type]


def check_seed(given: object) -> int:
    """Return the seed; raise `OptionError` unless it is an unsigned 64-bit integer."""
    if not isinstance(given, Integral) or not 0 <= int(given) < 2**64:
        raise OptionError(f"seed must be an integer from 0 to 2**64 - 1, got {quoted(given)}")
    return int(given)


def choose(kind: str, given: str, allowed: Sequence[str]) -> str:
    """Return `given` if it is allowed; else raise an `OptionError` that lists the choices."""
    if not isinstance(given, str) or given not in allowed:
        near = did_you_mean(given, allowed, before="; ")
        raise OptionError(
            f"unknown {kind} {quoted(given)}; choose one of: {', '.join(allowed)}{near}"
        )
    return given


def no_attribute(module: str, name: str, known: Iterable[str]) -> AttributeError:
    """Return the error of a module for an unknown attribute, with the closest known names."""
    near = did_you_mean(name, known, before="; ")
    return AttributeError(f"module {module!r} has no attribute {name!r}{near}")


def did_you_mean(given: object, choices: Iterable[str], before: str = "") -> str:
    """Return `before` and a question that suggests the closest choices; empty if none is close.

    The comparison ignores case. Choices at least `MUCH_LESS` less similar than the closest are
    omitted.
    """
    asked, folded = str(given).casefold(), dict[str, list[str]]()
    for choice in choices:
        folded.setdefault(choice.casefold(), []).append(choice)
    alike = difflib.get_close_matches(asked, folded, cutoff=LEAST_LIKE)
    nearness = [difflib.SequenceMatcher(None, key, asked).ratio() for key in alike]
    near = [
        choice
        for key, ratio in zip(alike, nearness, strict=True)
        if ratio > nearness[0] - MUCH_LESS
        for choice in folded[key]
    ]
    return f"{before}did you mean {' or '.join(near)}?" if near else ""


def or_all(given: object, choices: Iterable[str]) -> str:
    """Return a question that suggests the closest choices, else a list of the choices."""
    listed = list(choices)
    more = f" and {len(listed) - MOST_NAMES} more" if len(listed) > MOST_NAMES else ""
    there = f"choose one of: {', '.join(listed[:MOST_NAMES])}{more}" if listed else "there is none"
    return did_you_mean(given, listed) or there


MOST_NAMES = 20
"""Maximum number of names that a message lists."""

LEAST_LIKE = 0.65
"""Least similarity of a suggestion, as a `difflib` ratio (0 to 1). Color and lower have 0.6."""

MUCH_LESS = 0.1
"""A suggestion may be less similar than the closest one by at most this difference of `difflib`
ratios (0 to 1), about one letter of ten."""
