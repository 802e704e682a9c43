"""Sizes that minimize the expected step time for a histogram of lengths, by dynamic programming."""

from __future__ import annotations

import bisect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.errors import OptionError, quoted, whole_number

Array = np.ndarray[Any, np.dtype[Any]]

Cost = Callable[[int], float] | Mapping[int, float]
"""The cost of a step for each size: a function, or a mapping that has all candidate sizes."""


@dataclass(frozen=True, slots=True)
class Buckets:
    """Sizes for a histogram of lengths, and their expected cost per step.

    Each length takes the smallest of `sizes` that holds it. `expected_cost` is the mean cost of a
    step in the unit of the given costs. `single_cost` is that cost with one size for the largest
    length, and `separate_cost` with a size for each length, rounded up as `sizes` are. `padding`,
    `single_padding` and `separate_padding` are the padded elements as fractions of all elements.
    """

    sizes: tuple[int, ...]
    expected_cost: float
    single_cost: float
    separate_cost: float
    padding: float
    single_padding: float
    separate_padding: float

    def size_of(self, length: int) -> int:
        """Return the smallest size that holds a length; raises `OptionError` if none does."""
        index = bisect.bisect_left(self.sizes, whole_number("a length", length))
        if index == len(self.sizes):
            raise OptionError(
                f"no size holds the length {length}; the largest size is {self.sizes[-1]}"
            )
        return self.sizes[index]


def buckets(
    histogram: Mapping[int, int] | Iterable[int],
    k: int,
    *,
    cost: Cost | None = None,
    multiple_of: int = 1,
) -> Buckets:
    """Return at most `k` sizes that minimize the expected cost of a step.

    `histogram` maps lengths to counts, or lists the lengths. `cost` is the cost of a step by size,
    such as its modeled or measured seconds; without it, the cost is the size, which minimizes
    padding. Sizes are lengths of the histogram, rounded up to a multiple of `multiple_of`. The
    result is exact for any cost, in O(k · n²) for n distinct lengths.

    Raises `OptionError` for an empty histogram, for lengths, counts or costs that are not valid
    numbers, and if `k` or `multiple_of` is not an integer of at least 1.
    """
    counts = counted(histogram)
    whole_number("k", k)
    lengths = list(counts)
    candidates = sorted({rounded(length, multiple_of) for length in lengths})
    costs = [_cost_of(size, cost) for size in candidates]
    return _described(counts, _best(counts, candidates, costs, k), cost, multiple_of)


def expected(
    histogram: Mapping[int, int] | Iterable[int],
    sizes: Sequence[int],
    *,
    cost: Cost | None = None,
) -> Buckets:
    """Return the expected cost and the padding of given sizes.

    Arguments are as of `buckets`. Raises `OptionError` also if no size holds the largest length.
    """
    counts = counted(histogram)
    if not isinstance(sizes, Sequence):
        raise OptionError(f"sizes must be a list of sizes, got {quoted(sizes)}")
    for size in sizes:
        whole_number("a size", size)
    if not sizes or max(sizes) < max(counts):
        raise OptionError(
            f"no size holds the length {max(counts)}; the sizes are {quoted(list(sizes))}"
        )
    return _described(counts, sorted(set(sizes)), cost, 1)


def counted(histogram: object) -> dict[int, int]:
    """Return counts by ascending length; raises `OptionError` for an invalid histogram."""
    if not isinstance(histogram, Iterable) or isinstance(histogram, str | bytes):
        raise OptionError(
            f"a histogram must map lengths to counts, or list lengths, got {quoted(histogram)}"
        )
    if not isinstance(histogram, Mapping):
        histogram = Counter([whole_number("a length", length) for length in histogram])
    found = {
        whole_number("a length", length): whole_number("a count", count, least=0)
        for length, count in histogram.items()
    }
    found = {length: count for length, count in sorted(found.items()) if count}
    if not found:
        raise OptionError("the histogram has no lengths; give at least one with a count above 0")
    return found


def rounded(length: int, multiple_of: int) -> int:
    """Return the smallest multiple that is at least `length`; raises `OptionError`."""
    whole_number("multiple_of", multiple_of)
    return -(-length // multiple_of) * multiple_of


def spread(candidates: Sequence[int], count: int) -> list[int]:
    """Return at most `count` ascending candidates: the first, the last, and evenly between."""
    if len(candidates) <= count:
        return list(candidates)
    wanted = np.linspace(candidates[0], candidates[-1], count)
    ordered = np.asarray(candidates)
    nearest = {int(np.abs(ordered - each).argmin()) for each in wanted}
    return [candidates[index] for index in sorted(nearest)]


def interpolated(points: Sequence[int], seconds: Sequence[float]) -> Callable[[int], float]:
    """Return the seconds of a step as a function of its length, linear between points."""
    return lambda length: float(np.interp(length, points, seconds))


def _cost_of(size: int, cost: Cost | None) -> float:
    if cost is None:
        return float(size)
    if isinstance(cost, Mapping):
        if size not in cost:
            raise OptionError(f"cost has no entry for the size {size}; add one, or pass a function")
        found = cost[size]
    else:
        if not callable(cost):
            raise OptionError(
                "cost must be a function of the size, or map sizes to the costs of a step, got "
                f"{quoted(cost)}"
            )
        found = cost(size)
    if not isinstance(found, int | float | np.number) or not 0 <= float(found) < math.inf:
        raise OptionError(
            f"the cost of the size {size} must be a finite number of at least 0, got "
            f"{quoted(found)}"
        )
    return float(found)


def _best(
    counts: Mapping[int, int], candidates: Sequence[int], costs: Sequence[float], k: int
) -> list[int]:
    """Return the sizes with the least total cost, at most `k`.

    `least[i]` is the least cost of all lengths up to candidate i - 1 if that is the largest size of
    at most j sizes. A further size at candidate i then pays its cost for each length in between.
    """
    n = len(candidates)
    steps = np.zeros(n + 1)  # the number of steps with a length of at most each candidate
    for length, count in counts.items():
        steps[bisect.bisect_left(candidates, length) + 1] += count
    steps = steps.cumsum()
    least: Array = np.full(n + 1, np.inf)
    least[0] = 0.0
    chosen: list[Array] = []
    best, rounds = math.inf, 0
    for number in range(min(k, n)):
        grown: Array = np.full(n + 1, np.inf)
        before = np.zeros(n + 1, np.int64)
        for i in range(1, n + 1):
            totals = least[:i] + (steps[i] - steps[:i]) * costs[i - 1]
            before[i] = int(totals.argmin())
            grown[i] = totals[before[i]]
        chosen.append(before)
        least = grown
        if least[n] < best:
            best, rounds = float(least[n]), number
    sizes, i = [], n
    for before in reversed(chosen[: rounds + 1]):
        sizes.append(candidates[i - 1])
        i = int(before[i])
    return sizes[::-1]


def _described(
    counts: Mapping[int, int], sizes: Sequence[int], cost: Cost | None, multiple_of: int
) -> Buckets:
    """Return the expected costs and the padding of sizes."""
    total = sum(counts.values())

    def mean(size_of: Callable[[int], int]) -> float:
        return sum(n * _cost_of(size_of(length), cost) for length, n in counts.items()) / total

    def padding(size_of: Callable[[int], int]) -> float:
        filled = sum(length * n for length, n in counts.items())
        return 1 - filled / sum(size_of(length) * n for length, n in counts.items())

    def smallest(length: int) -> int:
        return sizes[bisect.bisect_left(sizes, length)]

    def largest(length: int) -> int:
        return sizes[-1]

    def separate(length: int) -> int:
        return rounded(length, multiple_of)

    return Buckets(
        tuple(sizes), mean(smallest), mean(largest), mean(separate),
        padding(smallest), padding(largest), padding(separate),
    )  # fmt: skip
