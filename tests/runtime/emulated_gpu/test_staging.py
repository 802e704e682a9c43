"""Feeds and outputs beside an emulated GPU: every order of two halves, every byte of the arena."""

import ctypes
import itertools

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc.codegen.text.operands import Place
from graphc.ir.types import contiguous_strides
from graphc.runtime.gpu.places import ARENA_ALIGNMENT
from graphc.runtime.gpu.staging import HALVES, Arrivals, Departures, Mirror, arranged

SLOTS = 4096
ARENA = 2 * SLOTS
"""The second half has slots, as far from its start as their values' places from the arena's."""

FILL = 0x5A


class Arena:
    """An arena on an emulated GPU, and three values in it: in one piece, transposed, spread."""

    def __init__(self, seed=0):
        self.device = EmulatedDevice(seed)
        self.base = self.device.allocate(ARENA)
        self.stream = self.device.stream()
        self.device.fill(self.base, ARENA, FILL, self.stream)
        x, y, n = g.input("x", (3, 5)), g.input("y", (2, 3, 4), "float64"), g.input("n", ())
        self.places = {
            x: Place(self.base + 256, contiguous_strides(x.type)),
            y: Place(self.base + 1024, (96, 8, 24)),
            n: Place(self.base + 2048, ()),
        }
        self.values = tuple(self.places)
        spread = g.input("z", (2, 3), "int32")
        self.places[spread] = Place(self.base + 3072, (64, 8))
        self.spread = spread
        self.slots = {
            value: Place(self.places[value].address + SLOTS, self.places[value].strides)
            for value in self.values
        }
        self.bytes()

    def bytes(self):
        """The bytes of the arena as they are now."""
        found = np.empty(ARENA, np.uint8)
        self.device.download(found, self.base, self.stream)
        self.device.synchronize(self.device.record(self.stream))
        return found

    def elements(self, value):
        """A value's elements, read out of the arena one by one."""
        whole, place = self.bytes(), self.places[value]
        found = np.empty(value.shape, value.type.dtype.numpy)
        for index in np.ndindex(value.shape):
            start = (
                place.address
                - self.base
                + sum(i * s for i, s in zip(index, place.strides, strict=True))
            )
            size = value.type.dtype.itemsize
            found[index] = whole[start : start + size].view(value.type.dtype.numpy)[0]
        return found


def numbers(values, seed):
    drawn = np.random.default_rng(seed)
    return {v: (100 * drawn.standard_normal(v.shape)).astype(v.type.dtype.numpy) for v in values}


def test_elements_lie_where_their_strides_say():
    arena = Arena()
    value = arena.spread
    memory = np.full(128, FILL, np.uint8)
    given = np.arange(6, dtype=np.int32).reshape(2, 3)
    arranged(memory, value, arena.places[value])[...] = given
    expected = np.full(128, FILL, np.uint8)
    for (i, j), number in np.ndenumerate(given):
        start = 64 * i + 8 * j
        expected[start : start + 4] = np.frombuffer(number.tobytes(), np.uint8)
    np.testing.assert_array_equal(memory, expected)


def test_a_mirror_takes_its_values_to_the_arena_and_nothing_else():
    arena = Arena()
    mirror = Mirror(arena.device, arena.values, arena.places)
    given = numbers(arena.values, 0)
    for value, array in given.items():
        mirror.array(value)[...] = array
    mirror.upload(arena.stream)
    whole = arena.bytes()
    for value, array in given.items():
        np.testing.assert_array_equal(arena.elements(value), array)
        start = arena.places[value].address - arena.base
        whole[start : start + array.nbytes] = FILL
    assert (whole == FILL).all()


def test_a_mirror_brings_values_from_the_arena():
    """Values of one mirror do not touch each other on the host."""
    arena = Arena()
    there = Mirror(arena.device, arena.values, arena.places)
    back = Mirror(arena.device, arena.values, arena.places)
    given = numbers(arena.values, 1)
    for value, array in given.items():
        there.array(value)[...] = array
    there.upload(arena.stream)
    back.download(arena.stream)
    arena.bytes()
    for value, array in given.items():
        np.testing.assert_array_equal(back.array(value), array)
    starts = [back.array(value).ctypes.data for value in arena.values]
    assert {(start - starts[0]) % ARENA_ALIGNMENT for start in starts} == {0}
    assert len(set(starts)) == len(starts)


def orders(count):
    """Every order of staging and uploading so many feeds, each staged before it is uploaded, in
    turn."""
    for picks in itertools.product("su", repeat=2 * count):
        waiting, staged, order = list(range(count)), [], []
        for pick in picks:
            if pick == "s" and waiting:
                staged.append(waiting.pop(0))
                order.append(("stage", staged[-1]))
            elif pick == "u" and staged:
                order.append(("upload", staged.pop(0)))
        if not waiting and not staged:
            yield tuple(order)


def all_orders(count):
    """The same, with uploads of staged feeds in any order, as of loops over one program."""
    found = set()
    for order in orders(count):
        for names in itertools.permutations(range(count)):
            uploads = iter(names)
            renamed = [(what, which if what == "stage" else next(uploads)) for what, which in order]
            positions = {step: at for at, step in enumerate(renamed)}
            if all(positions["stage", n] < positions["upload", n] for n in range(count)):
                found.add(tuple(renamed))
    return sorted(found)


def arrivals(arena, has_slots=False):
    return Arrivals(arena.device, arena.values, arena.places, arena.slots if has_slots else {})


def test_there_are_orders_in_which_a_half_is_taken_over():
    """Four feeds in a row before the first upload need two halves twice."""
    assert HALVES == 2
    found = all_orders(4)
    assert (("stage", 0), ("stage", 1), ("stage", 2), ("stage", 3)) in {o[:4] for o in found}
    assert len(found) == 105  # the ways to pair eight places, of which the first is the staging


def step(arena):
    """Enqueue what looks at the arena's first half, and then loses all that is there: inputs share
    their bytes with other values of a step."""
    found = np.empty(SLOTS, np.uint8)
    arena.device.download(found, arena.base, arena.stream)
    arena.device.fill(arena.base, SLOTS, FILL, arena.stream)
    return found


def steps_find_their_feeds(arena, has_slots):
    """Whether each of four steps finds its own feeds, in every order."""
    given = [numbers(arena.values, 10 + n) for n in range(4)]
    for order in all_orders(4):
        arriving, feeds, seen = arrivals(arena, has_slots), {}, {}
        for what, number in order:
            if what == "stage":
                feeds[number] = arriving.stage(given[number])
            else:
                arriving.feed(feeds[number], arena.stream)
                seen[number] = step(arena)
        arena.bytes()
        for number, whole in seen.items():
            for value, array in given[number].items():
                start = arena.places[value].address - arena.base
                if not (arranged(whole[start:], value, arena.places[value]) == array).all():
                    return False
    return True


@pytest.mark.parametrize("has_slots", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_every_step_gets_its_own_feeds_whatever_the_order(seed, has_slots):
    """Uploads run when somebody waits for them: feeds stay on the host until then."""
    assert steps_find_their_feeds(Arena(seed), has_slots)


@pytest.mark.parametrize("has_slots", [False, True])
def test_a_copy_that_does_not_wait_for_the_step_before_is_found(has_slots, monkeypatch):
    upload = Arrivals._upload
    monkeypatch.setattr(Arrivals, "_upload", lambda self, feed, after: upload(self, feed, None))
    assert not all(steps_find_their_feeds(Arena(seed), has_slots) for seed in range(3))


@pytest.mark.parametrize("has_slots", [False, True])
def test_a_step_that_does_not_wait_for_its_feeds_is_found(has_slots, monkeypatch):
    arena = Arena()
    wait = arena.device.wait
    others = lambda stream, event: stream is arena.stream or wait(stream, event)  # noqa: E731
    monkeypatch.setattr(arena.device, "wait", others)
    assert not steps_find_their_feeds(arena, has_slots)


@pytest.mark.parametrize("has_slots", [False, True])
def test_the_next_feeds_are_written_while_a_step_runs(has_slots):
    """Nobody waits but for the copies of the step before the last."""
    arena = Arena()
    arriving, waits = arrivals(arena, has_slots), []
    synchronize = arena.device.synchronize
    arena.device.synchronize = lambda event: (waits.append(event), synchronize(event))
    for number in range(4):
        arriving.feed(arriving.stage(numbers(arena.values, number)), arena.stream)
        assert len(waits) == max(0, number + 1 - HALVES)


def test_with_slots_the_next_feeds_arrive_before_a_step_ends():
    """Its end waits for an event that nobody has recorded yet."""
    arena = Arena()
    arriving, given = arrivals(arena, has_slots=True), [numbers(arena.values, n) for n in range(2)]
    arriving.feed(arriving.stage(given[0]), arena.stream)
    other = arena.device.stream()
    other.add(("wait", never := type("Never", (), {"happened": False, "captured": False})()))
    arena.device.wait(arena.stream, arena.device.record(other))
    step(arena)
    arriving.stage(given[1])
    arena.device.synchronize(arena.device.record(arriving.stream))
    whole = np.frombuffer((ctypes.c_uint8 * ARENA).from_address(arena.base), np.uint8)
    for value, slot in arena.slots.items():
        found = arranged(whole[slot.address - arena.base :], value, slot)
        np.testing.assert_array_equal(found, given[1][value])
    never.happened = True
    arena.bytes()


def test_feeds_that_were_half_written_when_that_stopped_are_written_anew():
    """A third feed takes the half of the first one, and is given up on the way."""
    arena = Arena()
    arriving = arrivals(arena)
    given = [numbers(arena.values, n) for n in range(3)]
    first = arriving.stage(given[0])
    arriving.stage(given[1])
    broken = {**given[2], arena.values[-1]: object()}
    with pytest.raises(TypeError):
        arriving.stage(broken)
    arriving.feed(first, arena.stream)
    for value, array in given[0].items():
        np.testing.assert_array_equal(arena.elements(value), array)


def test_outputs_are_new_arrays_by_name():
    """One value may be shown by two names; the next step's outputs change no array."""
    arena = Arena()
    x, y, n = arena.values
    named = {"a": x, "b": y, "c": y, "n": n}
    leaving = Departures(arena.device, named, arena.places, {})
    there = Mirror(arena.device, arena.values, arena.places)
    found, given = [], [numbers(arena.values, seed) for seed in range(2)]
    for arrays in given:
        for value, array in arrays.items():
            there.array(value)[...] = array
        there.upload(arena.stream)
        found.append(leaving.outputs(leaving.fetch(arena.stream)))
    for outputs, arrays in zip(found, given, strict=True):
        assert list(outputs) == list(named)
        for name, value in named.items():
            np.testing.assert_array_equal(outputs[name], arrays[value])
    assert not np.shares_memory(found[0]["b"], found[0]["c"])


def outputs_are_those_of_their_steps(arena):
    """Whether six steps' outputs are their own where the next step begins before they are taken."""
    named = dict(zip("abc", arena.values, strict=True))
    leaving = Departures(arena.device, named, arena.places, arena.slots)
    there = [Mirror(arena.device, arena.values, arena.places) for _ in range(6)]
    given, fetched, found = [numbers(arena.values, n) for n in range(6)], [], []
    for mirror, arrays in zip(there, given, strict=True):
        for value, array in arrays.items():
            mirror.array(value)[...] = array
        mirror.upload(arena.stream)
        fetched.append(leaving.fetch(arena.stream))
        arena.device.fill(arena.base, SLOTS, FILL, arena.stream)
        if len(fetched) == HALVES:
            found.append(leaving.outputs(fetched.pop(0)))
    found += [leaving.outputs(each) for each in fetched]
    return all(
        (outputs[name] == arrays[value]).all()
        for outputs, arrays in zip(found, given, strict=True)
        for name, value in named.items()
    )


@pytest.mark.parametrize("seed", range(5))
def test_outputs_with_slots_leave_while_the_next_step_runs(seed):
    assert outputs_are_those_of_their_steps(Arena(seed))


@pytest.mark.parametrize("which", ["leaving", "computing"])
def test_outputs_that_do_not_wait_are_found(which, monkeypatch):
    """The stream of copies for the step, and the step for what leaves its slots."""
    right = []
    for seed in range(5):
        arena = Arena(seed)
        wait = arena.device.wait
        blind = lambda stream, event, arena=arena, wait=wait: (  # noqa: E731
            (stream is arena.stream) == (which == "computing") or wait(stream, event)
        )
        monkeypatch.setattr(arena.device, "wait", blind)
        right.append(outputs_are_those_of_their_steps(arena))
    assert not all(right)


@pytest.mark.parametrize("has_slots", [False, True])
def test_pinned_memory_is_there_before_the_first_step(has_slots):
    arena = Arena()
    arriving = arrivals(arena, has_slots)
    leaving = Departures(arena.device, {}, arena.places, {})
    before = arena.device.counts["pinned"]
    for number in range(5):
        arriving.feed(arriving.stage(numbers(arena.values, number)), arena.stream)
        leaving.fetch(arena.stream)
    assert arena.device.counts["pinned"] == before == HALVES + 1
