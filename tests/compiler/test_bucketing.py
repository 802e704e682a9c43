"""The sizes of buckets against exhaustive search, and what is refused."""

import itertools

import numpy as np
import pytest

import graphc as g
from graphc.compiler.bucketing import expected
from graphc.errors import OptionError


def exhaustive(histogram, k, cost, multiple_of):
    """The least expected cost of all sets of at most k sizes; each length takes the smallest."""
    counts = {length: count for length, count in histogram.items() if count}
    candidates = sorted({-(-length // multiple_of) * multiple_of for length in counts})
    least = float("inf")
    for number in range(1, k + 1):
        for sizes in itertools.combinations(candidates, number):
            if sizes[-1] == candidates[-1]:
                total = sum(
                    n * cost(min(size for size in sizes if size >= length))
                    for length, n in counts.items()
                )
                least = min(least, total / sum(counts.values()))
    return least


def random_case(seed):
    """A histogram of at most 9 lengths, with costs that need not rise with the length."""
    random = np.random.default_rng(seed)
    lengths = random.choice(np.arange(1, 60), random.integers(1, 10), replace=False)
    histogram = {int(length): int(random.integers(0, 50)) for length in lengths}
    histogram[int(lengths[0])] = 1
    table = random.random(64) + (np.arange(64) / 20 if seed % 3 else 0)
    costs = {size: float(table[size]) for size in range(1, 64)}
    return histogram, int(random.integers(1, 6)), costs, int(random.choice([1, 1, 4]))


def test_the_sizes_are_those_of_exhaustive_search():
    for seed in range(200):
        histogram, k, costs, multiple_of = random_case(seed)
        found = g.buckets(histogram, k, cost=costs, multiple_of=multiple_of)
        least = exhaustive(histogram, k, costs.__getitem__, multiple_of)
        assert found.expected_cost == pytest.approx(least, rel=1e-12)
        assert len(found.sizes) <= k
        assert list(found.sizes) == sorted(set(found.sizes))
        assert all(size % multiple_of == 0 for size in found.sizes)
        assert found == g.buckets(histogram, k, cost=costs.__getitem__, multiple_of=multiple_of)
        assert found.expected_cost <= found.single_cost * (1 + 1e-12)


def test_figures_of_a_small_histogram():
    found = g.buckets([3, 3, 3, 4, 10], 2)
    assert found.sizes == (4, 10)
    assert found.expected_cost == (4 * 4 + 10) / 5
    assert found.single_cost == 10
    assert found.separate_cost == 23 / 5
    assert found.padding == pytest.approx(1 - 23 / 26)
    assert found.single_padding == pytest.approx(1 - 23 / 50)
    assert found.separate_padding == 0
    assert g.buckets([3, 4], 2, multiple_of=4).separate_padding == pytest.approx(1 - 7 / 8)
    assert [found.size_of(length) for length in (1, 4, 5, 10)] == [4, 4, 10, 10]
    with pytest.raises(OptionError, match="holds the length 11; the largest size is 10"):
        found.size_of(11)
    all_sizes = g.buckets({3: 3, 4: 1, 10: 1}, 9)
    assert all_sizes.sizes == (3, 4, 10)
    assert all_sizes.expected_cost == all_sizes.separate_cost


def test_a_long_histogram_takes_no_quadratic_python():
    random = np.random.default_rng(0)
    lengths = np.minimum(random.lognormal(5, 0.8, 20_000).astype(int) + 1, 2048)
    found = g.buckets(lengths.tolist(), 6, cost=lambda size: size + size**2 / 4096)
    powers = expected(
        lengths.tolist(), [64, 128, 256, 512, 1024, 2048], cost=lambda size: size + size**2 / 4096
    )
    assert found.separate_cost < found.expected_cost < powers.expected_cost < found.single_cost
    assert len(found.sizes) == 6
    assert powers.separate_cost == found.separate_cost


@pytest.mark.parametrize(
    ("histogram", "k", "options", "message"),
    [
        ([], 1, {}, "has no lengths"),
        ({5: 0}, 1, {}, "has no lengths"),
        ([0], 1, {}, "a length must be"),
        ({5: -1}, 1, {}, "a count must be"),
        ([2.5], 1, {}, "a length must be"),
        (5, 1, {}, "a histogram must map"),
        ("12", 1, {}, "a histogram must map"),
        (b"12", 1, {}, "a histogram must map"),
        ([[1, 2]], 1, {}, r"a length must be .* got \[1, 2\]"),
        (np.ones((2, 2), int), 1, {}, "a length must be"),
        ([5], 0, {}, "k must be"),
        ([5], 1, {"cost": 3}, "cost must be a function of the size"),
        ([5], 1, {"multiple_of": 0}, "multiple_of must be"),
        ([5], 1, {"cost": {4: 1.0}}, "no entry for the size 5"),
        ([5], 1, {"cost": lambda size: float("nan")}, "finite number of at least 0, got nan"),
        ([5], 1, {"cost": lambda size: "fast"}, "finite number of at least 0, got 'fast'"),
        ([5], 1, {"cost": lambda size: -1}, "finite number of at least 0, got -1"),
    ],
)
def test_invalid_arguments_are_refused(histogram, k, options, message):
    with pytest.raises(OptionError, match=message):
        g.buckets(histogram, k, **options)


def test_other_arguments_that_are_no_sizes_are_refused():
    with pytest.raises(OptionError, match="sizes must be a list"):
        expected([5], 5)
    with pytest.raises(OptionError, match="a length must be"):
        g.buckets([5], 1).size_of("5")


def test_sizes_that_hold_no_length_are_refused():
    with pytest.raises(OptionError, match=r"no size holds the length 9; the sizes are \[4, 8\]"):
        expected([3, 9], [4, 8])
    with pytest.raises(OptionError, match="no size holds the length 3"):
        expected([3], [])
