"""Several small updates of an optimizer in one launch (horizontal fusion).

Problem: a network has hundreds of parameters of a few KiB. The update of each is a launch that
takes longer to start than to run.

So adjacent updates with equal properties (`Likeness`) become one launch, whose blocks are divided
among the nodes. Node i has blocks from `starts[i]` on, as many as its elements need. A block finds
its node by binary search over these numbers, which are constants of the text. It takes the node's
pointers from the launch's parameters. Then it runs the code of an elementwise kernel on that node's
elements alone, so no bit differs from separate launches.

Two invariants make this safe. No node of a launch reads a value that another node of the launch
writes, because blocks run in any order. And the alignment of an operand is the least alignment of
its values, because one text serves all of them. If an output overwrites its state in every node,
both share one pointer.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from graphc.codegen.elementwise.kernel import element_code, loop, pack_width
from graphc.codegen.node_calls import Launch
from graphc.codegen.products.scale_updates import POINTERS, scale_updates
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import BLOCK
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import VECTOR_BYTES, Operand, Place, Places, collapse, operand
from graphc.codegen.text.scalar import C_TYPES
from graphc.ir.expression import ScalarProgram
from graphc.ir.graph import Node, Value
from graphc.ops.elementwise import Elementwise
from graphc.ops.float8 import ScaleUpdate
from graphc.ops.update import Update

SMALL_BYTES = 64 * 2**10
"""The size in bytes below which state tensors are small. At some TB/s they are updated in less than
0.1 µs, while a launch takes some µs. Larger tensors keep separate launches, whose blocks process
several packs.
"""

PARAMETER_BYTES = 4000
"""Maximum bytes of the parameters of a launch; every device accepts 4,096."""

POINTER_BYTES = 8

ANY_EXTENT = (SMALL_BYTES,)
"""A placeholder shape for the tensors of a launch; each block looks up its number of elements."""


@dataclass(frozen=True, slots=True)
class Likeness:
    """The properties that all updates of one launch have in common."""

    op: str
    attributes: object
    dtypes: tuple[str, ...]
    repeated: tuple[bool, ...]
    """For each input, true if it is one number for all elements."""


def likeness(node: Node) -> Likeness | None:
    """Return the properties that updates must share to run in one launch. Returns None if the node
    is not a small update."""
    if isinstance(node.op, ScaleUpdate):
        return Likeness(node.op.name, node.attributes, (), ())
    if not isinstance(node.op, Update) or any(
        value.type.bytes >= SMALL_BYTES or value.shape != node.outputs[0].shape
        for value in node.outputs
    ):
        return None
    shape = node.outputs[0].shape
    if any(v.shape != shape and v.type.elements != 1 for v in node.inputs):
        return None
    dtypes = tuple(v.type.dtype.name for v in (*node.inputs, *node.outputs))
    repeated = tuple(value.shape != shape for value in node.inputs)
    return Likeness(node.op.name, node.attributes, dtypes, repeated)


def groups(nodes: Iterable[Node], places: Places) -> Iterator[tuple[Node, ...]]:
    """Yield nodes in their order, with neighbors that share a launch as one tuple.

    Other nodes are tuples of one node. `nodes` must not contain views, which would separate two
    updates.
    """
    group = _Group(places)
    for node in nodes:
        if not group.takes(node):
            if group.nodes:
                yield tuple(group.nodes)
            group = _Group(places)
        group.add(node)
    if group.nodes:
        yield tuple(group.nodes)


class _Group:
    """A group of adjacent nodes that may run in one launch."""

    def __init__(self, places: Places) -> None:
        self.places = places
        self.nodes: list[Node] = []
        self.likeness: Likeness | None = None
        self.read: set[Value] = set()
        self.written: set[Value] = set()

    def takes(self, node: Node) -> bool:
        """Return true if this node may join the group's launch."""
        if not self.nodes:
            return True
        if self.likeness is None or self.likeness != _launchable(node, self.places):
            return False
        is_apart = node.writes.isdisjoint(self.read) and node.reads.isdisjoint(self.written)
        together = [*self.nodes, node]
        return is_apart and _parameter_bytes(together, self.places) <= PARAMETER_BYTES

    def add(self, node: Node) -> None:
        self.likeness = self.likeness if self.nodes else _launchable(node, self.places)
        self.nodes.append(node)
        self.read |= node.reads
        self.written |= node.writes


def _launchable(node: Node, places: Places) -> Likeness | None:
    """Return the shared properties of a small update if all its tensors are contiguous, else
    None."""
    found = likeness(node)
    if found is None:
        return None
    in_one_piece = (_is_in_one_piece(v, places[v]) for v in (*node.inputs, *node.outputs))
    return found if all(in_one_piece) else None


def _is_in_one_piece(value: Value, place: Place) -> bool:
    extents, (whole,) = collapse(value.shape, [operand("", value, place, value.shape)])
    return not extents or whole.strides == (1,)


def grouped(nodes: Sequence[Node], places: Places) -> Launch:
    """Return one launch for updates with equal properties. No update may read a state that another
    one replaces."""
    if isinstance(nodes[0].op, ScaleUpdate):
        return scale_updates(nodes)
    columns = _columns(nodes, places)
    inputs = len(nodes[0].inputs)
    operands = [column.operand for column in columns]
    sources, targets = operands[:inputs], operands[inputs:]
    program = _program(nodes[0])
    expressions = program.expressions
    # Outputs are written in the order of the program, as in an elementwise kernel.
    ordered = [next(o for o in targets if o.name == name) for name in expressions]
    width = pack_width(ANY_EXTENT, sources, targets)

    def body(width: int, place: str) -> str:
        return element_code(ANY_EXTENT, sources, ordered, expressions, program.locals, width, place)

    sizes = [node.outputs[0].type.elements for node in nodes]
    loops = [loop("thread", f"elements / {width}u", width, body)]
    if any(size % width for size in sizes):
        loops.append(loop(f"elements / {width}u * {width}u + thread", "elements", 1, body))
    blocks = [-(-max(divmod(size, width)) // BLOCK) for size in sizes]
    starts = [0, *itertools.accumulate(blocks)]
    rows = [
        f"first = {starts[row]}u;\nblocks = {blocks[row]}u;\nelements = {size}u;\n"
        + "\n".join(c.choice(row) for c in columns if c.is_chosen)
        for row, size in enumerate(sizes)
    ]
    head = ["using Index = unsigned;", "Index first, blocks, elements;"]
    head += [column.declaration for column in columns if column.is_chosen]
    head.append(_chosen(starts, rows))
    head += [column.same for column in columns if column.same_as is not None]
    head.append("const Index thread = (blockIdx.x - first) * blockDim.x + threadIdx.x;")
    head.append("const Index threads = blocks * blockDim.x;")
    parameters = ", ".join(each for column in columns for each in column.parameters)
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters}) {{\n'
        f"{indented(head, 1)}\n" + "".join(loops) + "}\n"
    )
    arguments = tuple(v for column in columns for v in column.values[: column.pointers])
    return Launch(named(f"{nodes[0].op.name}s", text), arguments, starts[-1], BLOCK)


def _program(node: Node) -> ScalarProgram:
    assert isinstance(node.op, Elementwise)
    return node.op.scalar_program(node.attributes, tuple(v.type.dtype for v in node.inputs))


def _chosen(starts: Sequence[int], rows: Sequence[str]) -> str:
    """Return statements that find the node of a block by binary search, about log2(len(rows))
    comparisons."""
    if len(rows) == 1:
        return rows[0]
    half = len(rows) // 2
    below, above = _chosen(starts[:half], rows[:half]), _chosen(starts[half:], rows[half:])
    return (
        f"if (blockIdx.x < {starts[half]}u) {{\n{indented([below], 1)}\n}} else {{\n"
        f"{indented([above], 1)}\n}}"
    )


@dataclass(frozen=True, slots=True)
class _Column:
    """One operand of the grouped updates, with its value in each node."""

    operand: Operand
    values: tuple[Value, ...]
    is_output: bool
    same_as: str | None = None
    """The output that overwrites this input in every node, if one does."""

    @property
    def pointers(self) -> int:
        """The number of pointers that the launch gets for this operand: one if all nodes read the
        same value."""
        if self.same_as is not None:
            return 0
        return len(self.values) if self.is_output or len(set(self.values)) > 1 else 1

    @property
    def is_chosen(self) -> bool:
        """True if a block has to choose among several pointers for this operand."""
        return self.pointers > 1 or (self.is_output and self.pointers == 1)

    @property
    def type(self) -> str:
        """The C++ type of the pointer to this operand."""
        return f"{'' if self.is_output else 'const '}{C_TYPES[self.operand.dtype]} *"

    @property
    def parameters(self) -> list[str]:
        """The parameters of the kernel for this operand."""
        name = self.operand.name
        if not self.is_chosen:
            return [f"{self.type}{name}"] * self.pointers
        return [f"{self.type}{name}_{row}" for row in range(self.pointers)]

    @property
    def declaration(self) -> str:
        """The declaration of the pointer that a block chooses."""
        return f"{self.type}{self.operand.name};"

    def choice(self, row: int) -> str:
        """Return the statement that sets the block's pointer to the operand of node number
        `row`."""
        return f"{self.operand.name} = {self.operand.name}_{row};"

    @property
    def same(self) -> str:
        """The statement that sets the pointer to this input to the pointer of the output that
        overwrites it."""
        return f"{self.type}const {self.operand.name} = {self.same_as};"


def _columns(nodes: Sequence[Node], places: Places) -> list[_Column]:
    """Return a `_Column` for each operand of nodes that share a launch: inputs in order, then
    outputs."""
    op, found = nodes[0].op, likeness(nodes[0])
    assert found is not None, f"{nodes[0].label} is no small update"
    inputs = list(zip(*(node.inputs for node in nodes), strict=True))
    outputs = list(zip(*(node.outputs for node in nodes), strict=True))
    names = [op.input_name(index) for index in range(len(inputs))]
    over = {}
    for index, values in enumerate(outputs):
        state = names.index(op.must_overwrite[op.output_name(index)])
        if all(places[a] == places[b] for a, b in zip(inputs[state], values, strict=True)):
            over[state] = op.output_name(index)
    columns = [
        _Column(
            _operand(names[index], values, places, 0 if found.repeated[index] else 1),
            values,
            False,
            over.get(index),
        )
        for index, values in enumerate(inputs)
    ]
    columns += [
        _Column(_operand(op.output_name(index), values, places, 1), values, True)
        for index, values in enumerate(outputs)
    ]
    return columns


def _operand(name: str, values: Sequence[Value], places: Places, stride: int) -> Operand:
    """Return one operand for the values of all nodes, with the alignment that they all have."""
    address = functools.reduce(operator.or_, (places[v].address % VECTOR_BYTES for v in values))
    return Operand(name, values[0].type.dtype, (stride,), values[0], address)


def _parameter_bytes(nodes: Sequence[Node], places: Places) -> int:
    if isinstance(nodes[0].op, ScaleUpdate):
        return POINTER_BYTES * POINTERS * len(nodes)
    return POINTER_BYTES * sum(column.pointers for column in _columns(nodes, places))
