"""What cannot be packed is refused with the reason and the buffers."""

import re

import numpy as np
import pytest

from graphc.errors import CapacityError, GraphcError, OptionError, PackingError
from graphc.planner.pack import pack


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (([0], [1, 2], [3]), ["one entry per buffer", "upper has 2"]),
        (([[0]], [[1]], [[3]]), ["lower", "shape (1, 1)"]),
        (([0, 3], [1, 3], [3, 4]), ["buffer 1", "lower 3, upper 3"]),
        (([0, 2], [1, 3], [3, -4]), ["buffer 1", "at least 0", "-4"]),
        (([0, 0.5], [1, 3], [3, 4]), ["lower", "0.0 for buffer 0"]),
        (([0], [1], ["x"]), ["size", "'x' for buffer 0"]),
        (([0], [True], [3]), ["upper"]),
        (([0], [1], [2**63]), ["size", "2**62"]),
        (([0], [1], [2**70]), ["size", "too large"]),
        (([0, 0], [1, 1], [2**61, 2**61]), ["together", "2**62"]),
    ],
)
def test_malformed_buffers(arguments, parts):
    with pytest.raises(PackingError) as caught:
        pack(*arguments)
    assert isinstance(caught.value, GraphcError)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("options", "error", "part"),
    [
        ({"alignment": 0}, OptionError, "alignment must be an integer of at least 1, got 0"),
        ({"effort": -1}, OptionError, "effort"),
        ({"capacity": 1.5}, OptionError, "capacity"),
        ({"pinned": {2: 0}}, PackingError, "buffers are 0 to 1"),
        ({"pinned": {0: -8}}, OptionError, "pinned buffer 0"),
        ({"pinned": {0: 3}, "alignment": 2}, PackingError, "multiple of the alignment 2, got 3"),
        ({"pinned": {0: 2**62}}, PackingError, "below 2**62"),
    ],
)
def test_malformed_options(options, error, part):
    with pytest.raises(error) as caught:
        pack([0, 0], [2, 2], [4, 4], **options)
    assert part in str(caught.value)


LIMIT = 2**62
"""All sizes together stay below it, rounded up to the alignment."""


@pytest.mark.parametrize("alignment", [1, 8, 256])
@pytest.mark.parametrize("small", [0, 1, 255, 256, 257])
def test_the_limit_of_all_sizes_holds_for_sizes_rounded_up(alignment, small):
    half, rounded = LIMIT // 2, -(-small // alignment) * alignment
    most = (half - 1 - rounded) // alignment * alignment
    packing = pack([0] * 3, [1] * 3, [small, half, most], alignment=alignment)
    assert packing.height == half + most + rounded < LIMIT
    for size in (most + 1, most + alignment):
        with pytest.raises(PackingError, match="all sizes together") as caught:
            pack([0] * 3, [1] * 3, [small, half, size], alignment=alignment)
        assert f"got {packing.height + alignment} with alignment {alignment}" in str(caught.value)


@pytest.mark.parametrize("alignment", [1, 256])
def test_the_limit_of_pinned_ends_holds_for_sizes_rounded_up(alignment):
    start = LIMIT - 2 * alignment
    assert pack([0], [1], [1], alignment=alignment, pinned={0: start}).height == LIMIT - alignment
    for size in (alignment + 1, 2 * alignment):
        with pytest.raises(PackingError, match=r"must end below 2\*\*62, got 4611686018427387904"):
            pack([0], [1], [size], alignment=alignment, pinned={0: start})


def test_an_alignment_below_the_limit_is_taken():
    assert pack([0], [1], [1], alignment=LIMIT // 2).height == LIMIT // 2
    with pytest.raises(PackingError, match="all sizes together"):
        pack([0, 0], [1, 1], [1, 1], alignment=LIMIT // 2)
    with pytest.raises(PackingError, match="alignment must be below"):
        pack([], [], [], alignment=LIMIT)


IDS = ["weights", "a b", "3"]


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        (([0, 3, 0], [1, 3, 1], [3, 4, 5]), {}, "buffer 'a b': lower must be below upper"),
        (([0, 2, 0], [1, 3, 1], [3, -4, 5]), {}, "buffer 'a b': size must be at least 0"),
        (([0] * 3, [1] * 3, [4] * 3), {"pinned": {2: 3}, "alignment": 2}, "pinned buffer '3' must"),
        (([0] * 3, [1] * 3, [4] * 3), {"pinned": {0: LIMIT}}, "pinned buffer 'weights' must end"),
        (([0] * 3, [1] * 3, [4] * 3), {"pinned": {0: 0, 1: 3}}, "buffer 'weights', live"),
        (([0] * 3, [1] * 3, [4] * 3), {"pinned": {0: 0, 1: 3}}, "and buffer 'a b', live"),
        (([0] * 3, [1] * 3, [4] * 3), {"capacity": 11}, "buffer 'weights' (4 bytes), buffer 'a b'"),
        (([0] * 3, [1] * 3, [1, 4, 1]), {"pinned": {1: 8}, "capacity": 11}, "buffer 'a b', live"),
    ],
)
def test_messages_call_buffers_by_their_ids(columns, options, told):
    with pytest.raises(PackingError) as caught:
        pack(*columns, ids=IDS, **options)
    assert told in str(caught.value)
    assert not re.search(r"buffer \d", str(caught.value))


def test_a_pin_without_an_offset_is_told_by_its_id():
    with pytest.raises(OptionError, match="the offset of pinned buffer 'a b' must be an integer"):
        pack([0] * 3, [1] * 3, [4] * 3, ids=IDS, pinned={1: -1})


def test_every_buffer_has_an_id_or_none_has():
    with pytest.raises(PackingError, match=r"ids must have one entry per buffer, got .* ids has 3"):
        pack([0], [1], [3], ids=IDS)
    with pytest.raises(PackingError, match="ids must be a list of names, one per buffer, got 5"):
        pack([0], [1], [3], ids=5)


def test_a_capacity_may_have_a_unit():
    assert pack([0], [1], [1024], capacity="1KiB").height == 1024
    with pytest.raises(OptionError, match="capacity must be a size such as 7GiB"):
        pack([0], [1], [3], capacity="much")


def test_pinned_buffers_that_overlap_are_both_named():
    with pytest.raises(PackingError) as caught:
        pack([0, 5, 1], [2, 6, 3], [4, 4, 4], pinned={0: 8, 1: 8, 2: 11})
    assert caught.value.buffers == (0, 2)
    assert "buffer 0, live [0, 2) at bytes [8, 12)" in str(caught.value)
    assert "buffer 2, live [1, 3) at bytes [11, 15)" in str(caught.value)
    assert pack([0, 5, 1], [2, 6, 3], [4, 4, 4], pinned={0: 8, 1: 8, 2: 12}).height == 16


def test_more_is_live_than_the_capacity():
    with pytest.raises(CapacityError) as caught:
        pack([0, 1, 6, 6], [3, 4, 8, 9], [4, 6, 9, 1], capacity=9)
    error = caught.value
    assert (error.capacity, error.bound, error.times) == (9, 10, ((1, 3), (6, 8)))
    assert error.buffers == (1, 0)
    told = "buffer 1 (6 bytes), buffer 0 (4 bytes)"
    for part in ("10 bytes are live at time 1", "[1, 3), [6, 8)", told):
        assert part in str(error)


def test_a_pin_above_the_capacity():
    with pytest.raises(CapacityError, match="pinned buffer ends above the capacity") as caught:
        pack([0], [1], [4], pinned={0: 8}, capacity=10)
    assert caught.value.bound == 12


def pinned_apart():
    """Six bytes are live at most, but around the pinned middle there is no gap of four."""
    return {"lower": [0, 0], "upper": [2, 2], "size": [2, 4], "pinned": {0: 2}}


def test_a_capacity_that_an_exhausted_search_rules_out():
    with pytest.raises(CapacityError) as caught:
        pack(**pinned_apart(), capacity=7)
    assert "exhausted search or pinned buffers prove" in str(caught.value)
    assert (caught.value.height, caught.value.bound) == (8, 8)
    packing = pack(**pinned_apart())
    assert (packing.height, packing.bound, packing.is_optimal) == (8, 6, True)
    assert packing.gap == pytest.approx(1 / 3)


def test_the_search_stops_within_a_capacity():
    rng = np.random.default_rng(3)
    lower = rng.integers(0, 40, 60)
    given = lower, lower + rng.integers(1, 20, 60), rng.integers(1, 90, 60)
    first, best = pack(*given, effort=0), pack(*given, effort=10**7)
    assert best.height < first.height
    for capacity in (first.height, (first.height + best.height) // 2, best.height):
        found = pack(*given, capacity=capacity, effort=10**7)
        assert best.height <= found.height <= capacity
        assert found.proven <= best.height
        assert found.work <= best.work
    assert pack(*given, capacity=first.height).work == first.work


def test_a_capacity_that_was_not_reached():
    rng = np.random.default_rng(0)
    lower = rng.integers(0, 40, 200)
    upper = lower + rng.integers(1, 20, 200)
    size = rng.integers(1, 1000, 200)
    easy = pack(lower, upper, size, effort=0)
    assert easy.height > easy.bound
    with pytest.raises(CapacityError, match="does not prove that none exists") as caught:
        pack(lower, upper, size, capacity=easy.bound, effort=0)
    assert caught.value.height == easy.height
    assert pack(lower, upper, size, capacity=easy.height, effort=0).height == easy.height


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        (([[0], [1, 2]], [1], [1]), {}, "lower must be a list of integers"),
        (([0], [1], [5]), {"pinned": [1]}, "pinned must map indices of buffers"),
        (([0], [1], [0]), {"alignment": 2**70}, "alignment must be below"),
        (([0, 0], [1, 1], [5, 7]), {"pinned": {0: 2**62 - 1}}, "must end below"),
    ],
)
def test_malformed_packing_problems_are_refused(columns, options, message):
    with pytest.raises(PackingError, match=message):
        pack(*columns, **options)


@pytest.mark.parametrize(("empty", "inside"), [(0, 1), (1, 0)])
def test_a_pinned_buffer_without_bytes_may_be_inside_another(empty, inside):
    size = [0, 0]
    size[inside] = 5
    pinned = {empty: 3, inside: 0}
    packing = pack([0, 0], [10, 10], size, pinned=pinned)
    assert (packing.height, packing.offsets.tolist()) == (5, [pinned[0], pinned[1]])
