"""Construction of nodes and graphs: `apply` creates a node, `trace` a graph from outputs.

Existing graphs are rebuilt by `graphc.ir.rewrite`.

Scopes and mirror annotations are context managers; they apply per thread and per async task.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet, WeakValueDictionary

from graphc.errors import GraphError, OptionError, PlacedError, place_of_caller, quoted, truth
from graphc.ir.ancestors import ancestors
from graphc.ir.attributes import checked_attributes
from graphc.ir.contents import Contents, contents_of
from graphc.ir.graph import Graph, Initial, Input, Layer, Node, Phase, Role, State, Value
from graphc.ir.names import check_name, check_names, check_state_name, joined, name_layers
from graphc.ir.op import REGISTRY, Op
from graphc.ir.op_class import check_declared
from graphc.ir.operators import operator
from graphc.ir.shards import Shard
from graphc.ir.types import TensorType, number_of, tensor_type


@dataclass(frozen=True, slots=True)
class Context:
    """The attributes that a new node inherits from the current context managers."""

    scope: str = ""
    mirror: int = 0
    phase: Phase = "forward"
    segment: str = ""
    layer: Layer | None = None


_context: ContextVar[Context] = ContextVar("graphc_context", default=Context())  # noqa: B039 - frozen
_serials = itertools.count()
_layer_serials = itertools.count()
_limit: ContextVar[list[int] | None] = ContextVar("graphc_node_limit", default=None)
"""The number of nodes and parameters that may still be created, in a list; None for no limit."""
_kept: WeakSet[Value] = WeakSet()
_constants: WeakValueDictionary[tuple[str, str], State] = WeakValueDictionary()
"""Constants by name and digest, so that equal constants are the same value."""


@contextmanager
def _within(context: Context) -> Iterator[None]:
    token = _context.set(context)
    try:
        yield
    except PlacedError as error:
        error.scope = error.scope or context.scope
        raise
    finally:
        _context.reset(token)


@contextmanager
def scope(name: str) -> Iterator[None]:
    """Prefix names created inside with ``name/``; scopes nest, and a slash in a name nests, too.

    Compilation fails if two states have the same name. Unnamed layers in one scope are numbered, so
    their states do not clash. Raises `OptionError` for a name with characters other than letters,
    digits, ``_ . -`` and slashes.
    """
    outer = _context.get()
    with _within(replace(outer, scope=scoped_name(name))):
        yield


@contextmanager
def layer_scope(kind: str, name: str | None, default: str = "") -> Iterator[None]:
    """Enter the scope `name` of a layer; without a name, the scope `default`, or none.

    If the names of an unnamed layer's states are taken, `trace` puts them into the scope `kind`,
    ``kind_1``, and so on.
    """
    if name is not None:
        with scope(name):
            yield
        return
    outer = _context.get()
    plain, numbered = joined(outer.scope, default), joined(outer.scope, kind)
    layer = Layer(plain, numbered, next(_layer_serials))
    with _within(replace(outer, scope=plain, layer=layer)):
        yield


@contextmanager
def mirror(count: int) -> Iterator[None]:
    """Allow nodes created inside to be recomputed up to `count` times (``recompute="mirror"``).

    The count is the mirror attribute m(v) of Chen et al. (2016). Raises `OptionError` unless it is
    an integer of at least 0.
    """
    if not isinstance(count, int) or count < 0:
        raise OptionError(f"mirror needs an integer of at least 0, got {count!r}")
    with _within(replace(_context.get(), mirror=count)):
        yield


@contextmanager
def segment(name: str) -> Iterator[None]:
    """Put nodes created inside into a segment; ``recompute="segments"`` saves its outputs.

    Segments are those of Alg. 1 of Chen et al. (2016). They nest; a node belongs to the innermost
    one. Names follow the rules of `scope`.
    """
    outer = _context.get()
    check_name(name)
    path = f"{outer.segment}/{name}" if outer.segment else name
    with _within(replace(outer, segment=path)):
        yield


@contextmanager
def in_phase(phase: Phase, scope: str = "", segment: str = "") -> Iterator[None]:
    """Give nodes created inside exactly this phase, scope and segment; for passes."""
    with _within(Context(scope=scope, phase=phase, segment=segment)):
        yield


@contextmanager
def at_most(count: int) -> Iterator[None]:
    """Raise `GraphError` if more than `count` nodes and parameters are created inside."""
    token = _limit.set([count])
    try:
        yield
    finally:
        _limit.reset(token)


def _count_node() -> None:
    left = _limit.get()
    if left is None:
        return
    left[0] -= 1
    if left[0] < 0:
        raise GraphError("the network has too many nodes and parameters; use fewer layers")


def scoped_name(name: str) -> str:
    """Return `name` inside the current scope; raises `OptionError` for an invalid name."""
    check_name(name)
    return joined(_context.get().scope, name)


def keep(value: Value) -> Value:
    """Return the value, marked so that no recomputation policy ever evicts it."""
    _kept.add(as_value("keep", value))
    return value


def input(
    name: str, shape: Sequence[int] | int, dtype: object = "float32", default: float | None = None
) -> Input:
    """Return a tensor fed at every step under this name, of exactly this shape and dtype.

    A scalar, of shape (), with a `default` may be left out of the feeds. Raises `OptionError` for
    an invalid name, and `ShapeError` or `DTypeError` for an invalid shape or dtype.
    """
    check_name(name)
    type = tensor_type(shape, dtype)
    if default is not None:
        if not isinstance(default, int | float) or type.shape != ():
            raise OptionError(
                f"input {name!r}: only an input of shape () can have a default, and it must be a "
                f"number; got {default!r} for {type}"
            )
        default = number_of("input " + name, default, type.dtype)
        if not math.isfinite(default):
            raise OptionError(f"input {name!r}: the default must be finite, got {default!r}")
    return Input(type, name=name, default=default, place=place_of_caller())


def parameter(
    name: str,
    shape: Sequence[int] | int,
    dtype: object = "float32",
    initial: Initial = Initial("constant", 0.0),  # noqa: B008 - frozen
    trainable: bool = True,
) -> State:
    """Return a trainable tensor named inside the current scope, with the initial value `initial`.

    Without `initial`, all elements are 0. With ``trainable=False`` the parameter is frozen: it gets
    no gradient and no moments. Raises `OptionError` for an invalid name, and `ShapeError` or
    `DTypeError` for an invalid shape or dtype.
    """
    type = tensor_type(shape, dtype)
    if not isinstance(initial, Initial):
        raise OptionError(
            f"parameter {name!r}: initial must be a graphc.Initial, such as "
            f"graphc.Initial('constant', 0.5), got {quoted(initial)}"
        )
    check_initial(name, type, initial)
    _count_node()
    is_trained = truth(f"parameter {name!r}: trainable", trainable)
    return _state(type, scoped_name(name), initial, "parameter", is_trained)


@operator("constant")
def constant(given: object, name: str | None = None, dtype: object = None) -> State:
    """Return a tensor of constant numbers, from an array, nested lists, or one number.

    Its bytes count as states. The numbers are part of the graph: its text and a plan's file contain
    them bit for bit, so a loaded plan needs nothing else. A constant is not a parameter: it is not
    trained, and `Program.states` and checkpoints omit it. An array keeps its dtype. Python floats
    become float32 and whole numbers int64, unless `dtype` is given.

    A `name` is inside the current scope. Without a name, constants with equal contents are the same
    value. Raises `OptionError` if `given` is not an array of numbers, `ShapeError` if it is empty,
    and `DTypeError` for a dtype that tensors cannot have, or that cannot represent the numbers.
    """
    contents = contents_of(given, dtype)
    _count_node()
    called = f"constant/{contents.digest[:16]}" if name is None else scoped_name(name)
    return constant_named(called, contents)


def constant_named(name: str, contents: Contents) -> State:
    """Return the constant with this full name and contents.

    An equal constant that still exists is reused.
    """
    type, place = contents.type, place_of_caller()
    made = State(type, name=name, initial=contents, role="constant", trainable=False, place=place)
    return _constants.setdefault((name, contents.digest), made)


def check_initial(name: str, type: TensorType, initial: Initial) -> None:
    """Raise `OptionError` or `DTypeError` if a state of this type cannot have the initial value."""
    if initial.kind == "seed":
        if type != SEED.type:
            raise OptionError(f"a seed must have the type {SEED.type}, got {type}")
        return
    where = f"the scale of {name!r}"
    is_drawn = initial.kind != "constant"
    if is_drawn and (type.dtype.kind != "float" or initial.scale < 0):
        raise OptionError(
            f"{where}: a random initial value needs a float dtype and a scale of at least 0, "
            f"got {initial} of {type.dtype}"
        )
    number_of(where, initial.scale, type.dtype)
    if is_drawn:
        number_of(f"ten times {where}, the largest value drawn", 10 * initial.scale, type.dtype)


def check_shard(name: str, type: TensorType, shard: Shard) -> None:
    """Raise `OptionError` or `DTypeError` unless a state of this type can hold a part of a row."""
    for member in shard.members:
        check_state_name(member.name)
        check_initial(member.name, tensor_type(member.shape, type.dtype), member.initial)
    shard.check(name, type.shape)


def state(name: str, shape: Sequence[int], dtype: object, value: float, role: Role) -> State:
    """Return a state that is not a parameter, such as a moment or counter, filled with `value`."""
    return _state(tensor_type(shape, dtype), name, Initial("constant", value), role, False)


def _state(type: TensorType, name: str, initial: Initial, role: Role, trainable: bool) -> State:
    layer = _context.get().layer
    state = State(
        type,
        name=name,
        initial=initial,
        role=role,
        trainable=trainable,
        place=place_of_caller(),
        layer=layer,
    )
    if layer is not None:
        layer.states.add(state)
    return state


STEP = state("counter/step", (), "int64", 0.0, "counter")
"""The counter of completed steps: one state, shared by all nodes that use the step number."""

SEED = State(
    tensor_type((2,), "int64"),
    name="counter/seed",
    initial=Initial("seed", 0.0),
    role="counter",
    trainable=False,
)
"""The program's seed as two words of 32 bits, low word first."""


def as_value(where: str, given: object) -> Value:
    """Return `given` if it is a `Value`; otherwise raises `OptionError` with the fix."""
    if not isinstance(given, Value):
        raise OptionError(
            f"{where}: an operand must be a graphc value, got {quoted(given)} "
            f"({type(given).__name__}); create one with graphc.input, parameter, full, or "
            "constant(array)"
        )
    return given


def as_values(where: str, given: object) -> tuple[Value, ...]:
    """Return a list of values as a tuple; raises `OptionError` for a single value."""
    if isinstance(given, Value) or not isinstance(given, Iterable):
        raise OptionError(f"{where}: give a list of graphc values, got {quoted(given)}")
    return tuple(as_value(where, value) for value in given)


def apply(op: type[Op], *inputs: Value, attributes: Any = None) -> Node:
    """Return a new node: infer its types, give it the current scope, mirror count and phase."""
    if "name" not in vars(op) and isinstance(op, type):
        check_declared(op)  # raises an error about the name
    instance = REGISTRY[op.name]
    attributes = op.attributes() if attributes is None else attributes
    for given in inputs:
        as_value(op.name, given)
    return create(instance, inputs, attributes, _context.get())


def create(op: Op, inputs: Sequence[Value], attributes: Any, context: Context) -> Node:
    """Return a new node in an explicit context.

    Errors about attributes and operands include the name of the op and the scope.
    """
    types = tuple(value.type for value in inputs)
    expected = len(op.inputs) - op.is_variadic
    if len(types) < expected or (len(types) > expected and not op.is_variadic):
        raise GraphError(f"{op.name} takes {expected} operands, got {len(types)}")
    _count_node()
    try:
        attributes = checked_attributes(attributes)
        output_types = op.infer_types(attributes, types)
    except PlacedError as error:
        listed = ", ".join(map(str, types))
        told = type(error)(f"{op.name}({listed}): {error.message}")
        told.scope = context.scope
        raise told from None
    return Node(
        op=op,
        inputs=tuple(inputs),
        attributes=attributes,
        output_types=output_types,
        serial=next(_serials),
        scope=context.scope,
        phase=context.phase,
        mirror=context.mirror,
        segment=context.segment,
    )


def copy(node: Node, inputs: Sequence[Value], **changes: Any) -> Node:
    """Return a new node with the same op and attributes on other inputs of the same types."""
    return replace(node, inputs=tuple(inputs), serial=next(_serials), **changes)


def trace(outputs: Mapping[str, Value], effects: Iterable[Node] = ()) -> Graph:
    """Return the graph of all nodes that `outputs` and `effects` need, in order of creation."""
    roots = list(outputs.values()) + [value for node in effects for value in node.outputs]
    nodes = tuple(ancestors(roots))
    graph = Graph(nodes, dict(outputs))
    kept = frozenset(value for value in graph.values if value in _kept)
    graph = Graph(nodes, dict(outputs), kept)
    name_layers(graph)
    check_names(graph)
    return graph
