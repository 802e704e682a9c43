"""A plain oracle for plans: one step over an arena in which each byte knows what it holds.

It shares nothing with the checker of plans: no cells, no pieces, no spans of several values. A byte
of the arena holds byte k of some value's elements in row-major order, written by some node. What a
view shows is found by running NumPy's own views over the numbers of the elements.
"""

import functools
from dataclasses import replace
from itertools import pairwise, product

import numpy as np
from properties.oracle import VIEWS

from graphc.ir.graph import State


def moved(plan, offsets):
    """The plan with some buffers elsewhere."""
    buffers = [replace(b, offset=offsets.get(b.index, b.offset)) for b in plan.buffers]
    rooms = {node: buffers[b.index] for node, b in plan.workspaces.items()}
    return replace(plan, buffers=tuple(buffers), workspaces=rooms)


def addresses(plan, value):
    """The address of every byte of a value, by its elements in row-major order."""
    place = plan.placements[value]
    start = plan.buffers[place.buffer].offset + place.offset
    inside = distances(value.shape, place.strides, value.type.dtype.itemsize)
    return [start + distance for distance in inside]


@functools.cache
def distances(shape, strides, size):
    """The distance of every byte of a value from its first one."""
    strides = strides or np.empty(shape, f"V{size}").strides
    return [
        sum(i * stride for i, stride in zip(index, strides, strict=True)) + byte
        for index in product(*map(range, shape))
        for byte in range(size)
    ]


def shown(node):
    """For each output of a view: which byte of what is viewed each of its bytes is."""
    (source,) = node.inputs[:1]
    size = source.type.dtype.itemsize
    numbers = np.arange(source.type.elements).reshape(source.shape)
    parts = VIEWS[node.op.name](node.attributes, numbers)
    return [[n * size + b for n in part.ravel().tolist() for b in range(size)] for part in parts]


def gathered(node):
    """For each operand of a concatenation: which byte of the output each of its bytes becomes."""
    (y,) = node.outputs
    size = y.type.dtype.itemsize
    numbers = np.arange(y.type.elements).reshape(y.shape)
    stops = np.cumsum([0, *(value.shape[node.attributes.axis] for value in node.inputs)])
    index = (slice(None),) * node.attributes.axis
    parts = [numbers[(*index, slice(a, b))] for a, b in pairwise(stops.tolist())]
    return [[n * size + b for n in part.ravel().tolist() for b in range(size)] for part in parts]


def is_sound(plan):
    """Whether a step under a plan reads everywhere what was written for it."""
    try:
        _Step(plan).run()
    except _UnsoundError:
        return False
    return True


class _UnsoundError(Exception):
    pass


def _demand(condition):
    if not condition:
        raise _UnsoundError


class _Step:
    def __init__(self, plan):
        self.plan, self.graph = plan, plan.graph
        self.places = {value: addresses(plan, value) for value in plan.graph.values}
        self.arena = {}
        self.tokens = {}  # value → what its bytes must be read as

    def run(self):
        self.lie_in_the_arena()
        self.live_long_enough()
        for source in sorted(self.graph.sources, key=lambda s: not isinstance(s, State)):
            self.write(source)
        for source in self.graph.sources:
            self.read(source)
        newest = {state: state for state in self.graph.states}
        for node in self.graph.nodes:
            for value in node.inputs:
                self.read(value)
            self.execute(node)
            for value, state in node.replaced.items():
                _demand(self.places[value] == self.places[state])
                newest[state] = value
        for value in (*self.graph.outputs.values(), *newest.values()):
            self.read(value)

    def lie_in_the_arena(self):
        plan = self.plan
        for buffer in (*plan.buffers, *plan.workspaces.values()):
            _demand(buffer.offset % plan.alignment == 0)
            _demand(buffer.offset >= 0 and buffer.offset + buffer.bytes <= plan.arena_bytes)
        for value, places in self.places.items():
            buffer = plan.buffers[plan.placements[value].buffer]
            _demand(buffer.offset <= min(places))
            _demand(max(places) < buffer.offset + buffer.bytes)
            _demand(all(p % value.type.dtype.itemsize == 0 for p in self.starts(value)))

    def starts(self, value):
        return self.places[value][:: value.type.dtype.itemsize]

    def live_long_enough(self):
        """Every step that reads or writes a value is one of its buffer's lifetime."""
        end = len(self.graph.nodes)
        touched = {value: set() for value in self.graph.values}
        for step, node in enumerate(self.graph.nodes):
            for value in (*node.inputs, *node.outputs):
                touched[value].add(step)
        for value in self.graph.outputs.values():
            touched[value].add(end)
        for state in self.graph.states:
            touched[state] |= {0, end}
        for value, steps in touched.items():
            lifetime = self.plan.buffers[self.plan.placements[value].buffer].lifetime
            _demand(steps <= set(range(lifetime.first, lifetime.last)))

    def read(self, value):
        found = [self.arena.get(place) for place in self.places[value]]
        _demand(found == self.tokens.get(value))  # None where nothing has computed it yet

    def write(self, value):
        places = self.places[value]
        _demand(len(set(places)) == len(places))
        self.tokens[value] = [(value, byte) for byte in range(len(places))]
        self.arena |= zip(places, self.tokens[value], strict=True)

    def execute(self, node):
        if node.viewed is not None and all(
            self.plan.placements[value].how == "view" for value in node.outputs
        ):
            self.view(node)
        elif node.op.gathers is not None and self.parts_in_place(node):
            self.gather(node)
        else:
            self.compute(node)

    def view(self, node):
        """Nothing is moved: the bytes of a view are some of those viewed, or the plan lies."""
        for value, numbers in zip(node.outputs, shown(node), strict=True):
            _demand(self.places[value] == [self.places[node.viewed][n] for n in numbers])
            self.tokens[value] = [self.tokens[node.viewed][n] for n in numbers]

    def parts_in_place(self, node):
        """The operands of a concatenation that lie where its output has them, by position."""
        whole = self.places[node.output]
        return [
            position
            for position, numbers in enumerate(gathered(node))
            if [whole[n] for n in numbers] == self.places[node.inputs[position]]
        ]

    def gather(self, node):
        """Parts in their place stay; the others are copied, and must be whole to the end."""
        kept = {
            place: self.arena[place]
            for position in self.parts_in_place(node)
            for place in self.places[node.inputs[position]]
        }
        self.write(node.output)
        self.arena |= kept
        self.tokens[node.output] = [self.arena[place] for place in self.places[node.output]]
        for value in node.inputs:
            self.read(value)

    def compute(self, node):
        for value in node.outputs:
            _demand(self.plan.placements[value].how != "view")
        self.spare_operands(node)
        room = self.plan.workspaces.get(node)
        if room is not None:
            inside = set(range(room.offset, room.offset + room.bytes))
            for value in (*node.inputs, *node.outputs):
                reach = range(min(self.places[value]), max(self.places[value]) + 1)
                _demand(inside.isdisjoint(reach))
            self.arena |= dict.fromkeys(inside, "anything")
        for value in node.outputs:
            self.write(value)

    def spare_operands(self, node):
        """An output lies over an operand byte by byte, where the op allows it, or apart from it."""
        op, named = node.op, [(node.op.input_name(i), v) for i, v in enumerate(node.inputs)]
        for index, value in enumerate(node.outputs):
            name = op.output_name(index)
            allowed = {*op.may_overwrite.get(name, ()), op.must_overwrite.get(name)}
            for operand in set(node.inputs):
                if set(self.places[operand]).isdisjoint(self.places[value]):
                    continue
                _demand(self.places[operand] == self.places[value])
                _demand(any(v is operand and n in allowed for n, v in named))
        for one, other in product(node.outputs, repeat=2):
            _demand(one is other or set(self.places[one]).isdisjoint(self.places[other]))
