"""Feeds and outputs beside an emulated GPU: every order of two halves, every byte of the arena."""

import itertools

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc.codegen.text.operands import Place
from graphc.ir.types import contiguous_strides
from graphc.runtime.gpu.places import ARENA_ALIGNMENT
from graphc.runtime.gpu.staging import HALVES, Mirror, Staging, arranged

ARENA = 4096
FILL = 0x5A


class Arena:
    """An arena on an emulated GPU, and three values in it: in one piece, transposed, spread."""

    def __init__(self, folder, seed=0):
        self.device = EmulatedDevice(folder, seed)
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


def test_elements_lie_where_their_strides_say(folder):
    arena = Arena(folder)
    value = arena.spread
    memory = np.full(128, FILL, np.uint8)
    given = np.arange(6, dtype=np.int32).reshape(2, 3)
    arranged(memory, value, arena.places[value])[...] = given
    expected = np.full(128, FILL, np.uint8)
    for (i, j), number in np.ndenumerate(given):
        start = 64 * i + 8 * j
        expected[start : start + 4] = np.frombuffer(number.tobytes(), np.uint8)
    np.testing.assert_array_equal(memory, expected)


def test_a_mirror_takes_its_values_to_the_arena_and_nothing_else(folder):
    arena = Arena(folder)
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


def test_a_mirror_brings_values_from_the_arena(folder):
    """Values of one mirror do not touch each other on the host."""
    arena = Arena(folder)
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


def staging_of(arena):
    return Staging(arena.device, arena.values, {}, arena.places)


def test_there_are_orders_in_which_a_half_is_taken_over():
    """Four feeds in a row before the first upload need two halves twice."""
    assert HALVES == 2
    found = all_orders(4)
    assert (("stage", 0), ("stage", 1), ("stage", 2), ("stage", 3)) in {o[:4] for o in found}
    assert len(found) == 105  # the ways to pair eight places, of which the first is the staging


@pytest.mark.parametrize("seed", range(3))
def test_every_step_gets_its_own_feeds_whatever_the_order(seed, folder):
    """Uploads run when somebody waits for them: feeds stay on the host until then."""
    arena = Arena(folder, seed)
    given = [numbers(arena.values, 10 + n) for n in range(4)]
    for order in all_orders(4):
        staging, feeds, fetched = staging_of(arena), {}, {}
        for what, number in order:
            if what == "stage":
                feeds[number] = staging.stage(given[number])
            else:
                staging.upload(feeds[number], arena.stream)
                fetched[number] = np.empty(ARENA, np.uint8)
                arena.device.download(fetched[number], arena.base, arena.stream)
        arena.bytes()
        for number, whole in fetched.items():
            for value, array in given[number].items():
                start = arena.places[value].address - arena.base
                found = arranged(whole[start:], value, arena.places[value])
                np.testing.assert_array_equal(found, array, err_msg=str(order))


def test_the_next_feeds_are_written_while_a_step_runs(folder):
    """Nobody waits but for the copies of the step before the last."""
    arena = Arena(folder)
    staging, waits = staging_of(arena), []
    synchronize = arena.device.synchronize
    arena.device.synchronize = lambda event: (waits.append(event), synchronize(event))
    for number in range(4):
        staging.upload(staging.stage(numbers(arena.values, number)), arena.stream)
        assert len(waits) == max(0, number + 1 - HALVES)


def test_feeds_that_were_half_written_when_that_stopped_are_written_anew(folder):
    """A third feed takes the half of the first one, and is given up on the way."""
    arena = Arena(folder)
    staging = staging_of(arena)
    given = [numbers(arena.values, n) for n in range(3)]
    first = staging.stage(given[0])
    staging.stage(given[1])
    broken = {**given[2], arena.values[-1]: object()}
    with pytest.raises(TypeError):
        staging.stage(broken)
    staging.upload(first, arena.stream)
    for value, array in given[0].items():
        np.testing.assert_array_equal(arena.elements(value), array)


def test_outputs_are_new_arrays_by_name(folder):
    """One value may be shown by two names; the next step's outputs change no array."""
    arena = Arena(folder)
    x, y, n = arena.values
    named = {"a": x, "b": y, "c": y, "n": n}
    staging = Staging(arena.device, (), named, arena.places)
    there = Mirror(arena.device, arena.values, arena.places)
    found, given = [], [numbers(arena.values, seed) for seed in range(2)]
    for arrays in given:
        for value, array in arrays.items():
            there.array(value)[...] = array
        there.upload(arena.stream)
        found.append(staging.outputs(staging.fetch(arena.stream)))
    for outputs, arrays in zip(found, given, strict=True):
        assert list(outputs) == list(named)
        for name, value in named.items():
            np.testing.assert_array_equal(outputs[name], arrays[value])
    assert not np.shares_memory(found[0]["b"], found[0]["c"])


def test_pinned_memory_is_there_before_the_first_step(folder):
    arena = Arena(folder)
    staging = staging_of(arena)
    before = arena.device.counts["pinned"]
    for number in range(5):
        staging.upload(staging.stage(numbers(arena.values, number)), arena.stream)
    assert arena.device.counts["pinned"] == before == HALVES + 1
