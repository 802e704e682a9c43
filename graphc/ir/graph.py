"""The intermediate representation: `Value`, `Node` and `Graph`.

A value is written once, by one node, or it comes from outside (`Input`) or from the previous step
(`State`). A graph is a tuple of nodes in execution order. The order is part of the graph: it is V'
of Alg. 2 in "Training Deep Nets with Sublinear Memory Cost" (Chen et al., 2016), which docstrings
call the paper. All three classes are immutable, except that `graphc.ir.names` completes the names
of an unnamed `Layer` once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal
from weakref import WeakSet

import numpy as np

from graphc.errors import OptionError, choose
from graphc.ir.attributes import Between
from graphc.ir.contents import Contents
from graphc.ir.forms import written
from graphc.ir.methods import Methods
from graphc.ir.op import Op
from graphc.ir.operators import Operators
from graphc.ir.shards import Shard
from graphc.ir.types import TensorType

Phase = Literal["forward", "gradient", "mirror", "update"]
"""The purpose of a node; `mirror` marks a recomputed copy."""

Role = Literal["parameter", "moment", "statistic", "counter", "constant"]
"""The kind of a state; a constant is never replaced."""

Memory = Literal["device", "host"]


@dataclass(frozen=True, slots=True)
class Initial:
    """The initial value of a state.

    `kind` is "constant" (filled with `scale`), "uniform" (within ±scale), "normal" (mean 0,
    standard deviation `scale`) or "seed", which is graphc's own. Random values follow from the
    program's seed and the state's name. Raises `OptionError` for another kind, or if the scale is
    not a number.
    """

    kind: Literal["constant", "uniform", "normal", "seed"]
    scale: float

    def __post_init__(self) -> None:
        choose("initial kind", self.kind, ("constant", "uniform", "normal", "seed"))
        Between().check("the scale of an initial value", self.scale)

    @property
    def details(self) -> dict[str, Any]:
        """The initial value as attributes in the text form of a graph."""
        return {"initial": self.kind, "scale": self.scale}

    def __str__(self) -> str:
        return f"{self.kind}({self.scale!r})"


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Value(Operators, Methods):
    """One tensor of a graph, known before any step: `type` has its shape and dtype.

    Values are equal only if they are the same object. Operators call functions of `graphc`: ``+ - *
    / ** @``, ``< <= > >=`` and ``x[1:3]``. So do the methods ``reshape transpose flatten sum mean
    max min astype cast``. A NumPy array as an operand becomes a `graphc.constant`. ``shape``,
    ``dtype``, ``ndim``, ``size``, ``T`` and ``len`` are those of NumPy. A value has no numbers: a
    step computes them.
    """

    type: TensorType
    node: Node | None = field(default=None, repr=False)
    index: int = 0

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of its elements."""
        return self.type.dtype.numpy

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.type.rank

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.type.elements

    def __len__(self) -> int:
        if not self.shape:
            raise OptionError("a value of shape () has no length")
        return self.shape[0]

    @property
    def producer(self) -> Node:
        """The node that computes this value; inputs and states have none."""
        assert self.node is not None, "inputs and states have no producer"
        return self.node

    @property
    def root(self) -> Value:
        """The value whose bytes this one views, through any number of views.

        Itself if it is not a view.

        Each access follows the chain of views. For many values, `Graph.roots` is faster.
        """
        value = self
        while value.node is not None and (viewed := value.node.viewed) is not None:
            value = viewed
        return value

    @property
    def on_host(self) -> bool:
        """True if the bytes of this value are in host memory: it is a state there, or the result of
        a copy to it."""
        copy = None if self.node is None else self.node.host_copy
        return copy is not None and copy.op.copies_to == "host"

    def __repr__(self) -> str:
        origin = "?" if self.node is None else self.node.label
        return f"<{self.type} from {origin}>"


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Input(Value):
    """A value that is fed at every step; one with a default may be omitted."""

    name: str = ""
    default: float | None = None
    place: str = ""
    """The source line that created the input, as FILE:LINE; empty if unknown."""

    def __repr__(self) -> str:
        return f"<input {self.name}: {self.type}>"


@dataclass(slots=True, eq=False)
class Layer:
    """A call of a layer function without a name.

    Its states are named in the scope `plain`. If another layer uses one of these names already, the
    scope is `numbered`, or `numbered` with ``_1``, ``_2`` and so on. `serial` orders layers by
    creation.
    """

    plain: str
    numbered: str
    serial: int
    states: WeakSet[State] = field(default_factory=WeakSet)
    is_named: bool = False


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class State(Value):
    """A value that persists across steps: a parameter, moment, statistic, counter or constant."""

    name: str = ""
    initial: Initial | Contents | Shard = Initial("constant", 0.0)
    role: Role = "parameter"
    trainable: bool = True
    place: str = ""
    """The source line that created the state, as FILE:LINE; empty if unknown."""
    layer: Layer | None = None
    """The unnamed layer that created the state; None if there is none."""
    memory: Memory = "device"
    """Its memory between steps. Steps update a copy of a state on the host, and write it back."""

    @property
    def on_host(self) -> bool:
        """True if the bytes of this state are in host memory."""
        return self.memory == "host"

    def __repr__(self) -> str:
        return f"<state {self.name}: {self.type}>"


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One execution of an op. `serial` orders nodes by creation."""

    op: Op
    inputs: tuple[Value, ...]
    attributes: Any
    output_types: tuple[TensorType, ...]
    serial: int
    scope: str = ""
    phase: Phase = "forward"
    mirror: int = 0
    """The number of times that the user allows this node to be recomputed, m(v) in the paper."""
    segment: str = ""
    """The name of the segment (Alg. 1) in which the user put the node; empty if none."""
    copy_of: Node | None = None
    level: int = 0
    """The number of a mirrored copy among the copies of its original, from 1; 0 for other nodes."""
    outputs: tuple[Value, ...] = field(init=False)

    def __post_init__(self) -> None:
        values = tuple(Value(type, self, i) for i, type in enumerate(self.output_types))
        object.__setattr__(self, "outputs", values)

    def reading(self, inputs: tuple[Value, ...], copy_of: Node | None) -> Node:
        """Return this node with other inputs of the same types, and as a copy of another original.

        Equivalent to `dataclasses.replace`, but faster: passes create many nodes.
        """
        return Node(
            self.op, inputs, self.attributes, self.output_types, self.serial, self.scope,
            self.phase, self.mirror, self.segment, copy_of, self.level,
        )  # fmt: skip

    @property
    def viewed(self) -> Value | None:
        """The operand that the outputs view, if its layout allows it (`Op.views`).

        None if the op produces no views.
        """
        name = self.op.views
        return None if name is None else self.inputs[self.op.inputs.index(name)]

    @property
    def replaced(self) -> dict[Value, Value]:
        """Output → the value that it replaces, for outputs in `Op.must_overwrite`: a state, or the
        copy of a state on the host."""
        op = self.op
        return {
            self.outputs[op.outputs.index(output)]: self.inputs[op.inputs.index(state)]
            for output, state in op.must_overwrite.items()
        }

    @property
    def awaited(self) -> Node | None:
        """The node that started the work for which this node waits; None if it does not wait."""
        begun = self.inputs[0].node if self.op.awaits else None
        return begun if begun is not None and begun.op.begins else None

    @property
    def host_copy(self) -> Node | None:
        """The node that starts the copy between device and host that this node starts or awaits.

        None if this node does neither.
        """
        begun = self if self.op.copies_to else self.awaited
        return begun if begun is not None and begun.op.copies_to else None

    @property
    def reads(self) -> set[Value]:
        """The values whose bytes the node reads: the roots of its inputs."""
        return {value.root for value in self.inputs}

    @property
    def writes(self) -> set[Value]:
        """The values whose bytes the node writes: its outputs, and the values that they replace."""
        return {*self.replaced.values(), *self.outputs}

    @property
    def label(self) -> str:
        """Scope and op for messages: ``layer0/relu``."""
        title = self.op.title(self.attributes)
        return f"{self.scope}/{title}" if self.scope else title

    @property
    def output(self) -> Value:
        """The output of a node with one output."""
        assert len(self.outputs) == 1, f"{self.op.name} has {len(self.outputs)} outputs"
        return self.outputs[0]

    def named_inputs(self) -> dict[str, Value | tuple[Value, ...]]:
        """Return inputs by declared name; a variadic input is a tuple."""
        return _by_name(self.op.inputs, self.inputs)

    def named_outputs(self) -> dict[str, Value | tuple[Value, ...]]:
        """Return outputs by declared name; a variadic output is a tuple."""
        return _by_name(self.op.outputs, self.outputs)

    def __repr__(self) -> str:
        return f"<{self.label} #{self.serial}>"


def _by_name(
    names: tuple[str, ...], values: tuple[Value, ...]
) -> dict[str, Value | tuple[Value, ...]]:
    named: dict[str, Value | tuple[Value, ...]] = {}
    for position, name in enumerate(names):
        named[name.lstrip("*")] = values[position:] if name.startswith("*") else values[position]
    return named


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes in execution order, named outputs, and kept values, which are never recomputed."""

    nodes: tuple[Node, ...]
    outputs: Mapping[str, Value]
    kept: frozenset[Value] = frozenset()

    @cached_property
    def inputs(self) -> tuple[Input, ...]:
        """The graph's inputs in order of first use."""
        return tuple(value for value in self.sources if isinstance(value, Input))

    @cached_property
    def states(self) -> tuple[State, ...]:
        """The graph's states in order of first use."""
        return tuple(value for value in self.sources if isinstance(value, State))

    @cached_property
    def sources(self) -> tuple[Value, ...]:
        """Values that no node computes, in order of first use."""
        read = (value for node in self.nodes for value in node.inputs)
        found = dict.fromkeys(value for value in read if value.node is None)
        found |= dict.fromkeys(value for value in self.outputs.values() if value.node is None)
        return tuple(found)

    @cached_property
    def values(self) -> tuple[Value, ...]:
        """All values: sources first, then outputs of nodes in execution order."""
        return self.sources + tuple(value for node in self.nodes for value in node.outputs)

    @cached_property
    def roots(self) -> dict[Value, Value]:
        """Value → the value that it views, through any number of views, or itself if it is not a
        view."""
        roots = {value: value for value in self.sources}
        for node in self.nodes:
            viewed = node.viewed
            roots.update(
                (value, value if viewed is None else roots[viewed]) for value in node.outputs
            )
        return roots

    @cached_property
    def visible(self) -> frozenset[Value]:
        """Outputs and kept values: no pass may merge them into others."""
        return self.kept | frozenset(self.outputs.values())

    @cached_property
    def position(self) -> dict[Node, int]:
        """Node → its index in the execution order."""
        return {node: step for step, node in enumerate(self.nodes)}

    @cached_property
    def uses(self) -> dict[Value, list[int]]:
        """Value → indices of the nodes that read it, ascending, without duplicates."""
        uses: dict[Value, list[int]] = {value: [] for value in self.values}
        for step, node in enumerate(self.nodes):
            for value in node.inputs:
                steps = uses[value]
                if not steps or steps[-1] != step:
                    steps.append(step)
        return uses

    @cached_property
    def names(self) -> dict[Value, str]:
        """Value → its name in the text form: ``%x``, ``@layer0/weight``, ``%12``, ``%12.m1``."""
        names: dict[Value, str] = {}
        for source in self.sources:
            if isinstance(source, Input):
                names[source] = f"%{source.name}"
            elif isinstance(source, State):
                names[source] = f"@{source.name}"
        number = 0
        for node in self.nodes:
            for value in node.outputs:
                original = node.copy_of and names.get(node.copy_of.outputs[value.index])
                if original:
                    names[value] = f"{original}.m{node.level}"
                else:
                    names[value] = f"%{number}"
                    number += 1
        return names

    @cached_property
    def replaced(self) -> frozenset[Value]:
        """The values that nodes replace (`Node.replaced`)."""
        return frozenset(value for node in self.effects for value in node.replaced.values())

    def in_order(self, nodes: Iterable[Node]) -> Graph:
        """Return the graph with only the given nodes, in the given order."""
        return Graph(tuple(nodes), self.outputs, self.kept)

    @property
    def effects(self) -> tuple[Node, ...]:
        """Nodes that replace a state; they are never removed, whether or not their outputs are
        read."""
        return tuple(node for node in self.nodes if node.op.has_effect)

    def _repr_html_(self) -> str:
        """Return HTML for notebooks: counts, and a picture of bytes by node."""
        return written(self, "html")
