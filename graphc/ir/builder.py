"""Construction of nodes and graphs: `apply` creates a node, `trace` a graph from outputs.

Existing graphs are rebuilt by `graphc.ir.rewrite`.

Scopes and mirror annotations are context managers; they apply per thread and per async task.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import ml_dtypes
import numpy as np

from graphc.errors import DTypeError, GraphError, OptionError, PlacedError, quoted, truth
from graphc.ir.attributes import checked_attributes
from graphc.ir.contents import Contents, contents_of
from graphc.ir.graph import Graph, Initial, Input, Node, Phase, Role, State, Value, ancestors
from graphc.ir.op import REGISTRY, Op
from graphc.ir.shards import Shard
from graphc.ir.types import DTYPES, DType, TensorType, tensor_type


@dataclass(frozen=True, slots=True)
class Context:
    """The attributes that a new node inherits from the current context managers."""

    scope: str = ""
    mirror: int = 0
    phase: Phase = "forward"
    segment: str = ""


_context: ContextVar[Context] = ContextVar("graphc_context", default=Context())  # noqa: B039 - frozen
_serials = itertools.count()
_limit: ContextVar[list[int] | None] = ContextVar("graphc_node_limit", default=None)
"""The number of nodes and parameters that may still be created, in a list of one, or None."""
_kept: WeakSet[Value] = WeakSet()
_constants: WeakValueDictionary[tuple[str, str], State] = WeakValueDictionary()
"""Constants by name and digest, so that equal ones are one value."""
_NAME = re.compile(r"[A-Za-z_][\w.-]*(/[\w.-]+)*")


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

    Every layer with parameters needs its own scope: two states with one name are an error at
    compile. Raises `OptionError` for a name with characters other than letters, digits, ``_ . -``
    and slashes.
    """
    outer = _context.get()
    with _within(replace(outer, scope=scoped_name(name))):
        yield


@contextmanager
def mirror(count: int) -> Iterator[None]:
    """Allow nodes created inside to be recomputed up to `count` times (``recompute="mirror"``).

    It is the paper's mirror attribute. Raises `OptionError` unless the count is a whole number from
    0.
    """
    if not isinstance(count, int) or count < 0:
        raise OptionError(f"mirror needs an integer of at least 0, got {count!r}")
    with _within(replace(_context.get(), mirror=count)):
        yield


@contextmanager
def segment(name: str) -> Iterator[None]:
    """Put nodes created inside into a segment of Alg. 1: ``recompute="segments"`` saves its
    outputs.

    Segments nest; a node belongs to the innermost. Names follow the rules of `scope`.
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
    outer = _context.get().scope
    return f"{outer}/{name}" if outer else name


def check_state_name(name: object) -> str:
    """Return a state's name that the text form allows, which may also begin with a digit."""
    if isinstance(name, str) and name[:1].isdigit():
        return check_name(f"_{name}")[1:]
    return check_name(name)


def check_name(name: object) -> str:
    """Return a name that the text form allows; raises `OptionError` for another."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise OptionError(
            f"{name!r} is not a valid name; a name starts with a letter or _, contains only "
            "letters, digits and _ . -, and separates parts by single slashes"
        )
    return name


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
    return Input(type, name=name, default=default)


def parameter(
    name: str,
    shape: Sequence[int] | int,
    dtype: object = "float32",
    initial: Initial = Initial("constant", 0.0),  # noqa: B008 - frozen
    trainable: bool = True,
) -> State:
    """Return a trainable tensor named inside the current scope, with the initial value `initial`.

    Without `initial` it is 0. With ``trainable=False`` it is frozen: it gets no gradient and no
    moments. Raises `OptionError` for an invalid name, and `ShapeError` or `DTypeError` for an
    invalid shape or dtype.
    """
    type = tensor_type(shape, dtype)
    if not isinstance(initial, Initial):
        raise OptionError(
            f"parameter {name!r}: initial must be a graphc.Initial, such as "
            f"graphc.Initial('constant', 0.5), got {initial!r}"
        )
    check_initial(name, type, initial)
    _count_node()
    is_trained = truth(f"parameter {name!r}: trainable", trainable)
    return State(type, name=scoped_name(name), initial=initial, trainable=is_trained)


def constant(given: object, name: str | None = None, dtype: object = None) -> State:
    """Return a tensor of constant numbers, from an array, nested lists, or one number.

    Its bytes count as states. The numbers are part of the graph: its text and a plan's file contain
    them bit for bit, so a loaded plan needs nothing else. A constant is not a parameter: it is not
    trained, and `Program.states` and checkpoints omit it. An array keeps its dtype. Python floats
    become float32 and whole numbers int64, unless `dtype` is given.

    A `name` is inside the current scope. Without one, equal contents are the same value. Raises
    `OptionError` if `given` is not an array of numbers, `ShapeError` if it is empty, and
    `DTypeError` for a dtype that tensors do not have, or that does not hold the numbers.
    """
    contents = contents_of(given, dtype)
    _count_node()
    called = f"constant/{contents.digest[:16]}" if name is None else scoped_name(name)
    return constant_named(called, contents)


def is_constant_name(name: str) -> bool:
    """Return whether a name is one that `constant` generates for an unnamed tensor."""
    return re.fullmatch(r"constant/[0-9a-f]{16}", name) is not None


def constant_named(name: str, contents: Contents) -> State:
    """Return the constant of a full name; an equal one that still exists is reused."""
    made = State(contents.type, name=name, initial=contents, role="constant", trainable=False)
    return _constants.setdefault((name, contents.digest), made)


def check_initial(name: str, type: TensorType, initial: Initial) -> None:
    """Raise `OptionError` or `DTypeError` unless the type can have this initial value."""
    if initial.kind == "seed":
        if type != SEED.type:
            raise OptionError(f"a seed must have the type {SEED.type}, got {type}")
        return
    where = f"the scale of {name!r}"
    number_of(where, initial.scale, type.dtype)
    if initial.kind != "constant":
        if type.dtype.kind != "float" or initial.scale < 0:
            raise OptionError(
                f"{where}: a random initial value needs a float dtype and a scale of at least 0, "
                f"got {initial} of {type.dtype}"
            )
        number_of(f"ten times {where}, the largest value drawn", 10 * initial.scale, type.dtype)


def check_shard(name: str, type: TensorType, shard: Shard) -> None:
    """Raise `OptionError` or `DTypeError` unless a state of that type can be this part of a row."""
    for member in shard.members:
        check_state_name(member.name)
        check_initial(member.name, tensor_type(member.shape, type.dtype), member.initial)
    shard.check(name, type.shape)


def state(name: str, shape: Sequence[int], dtype: object, value: float, role: Role) -> State:
    """Return a state of this `name` that is no parameter, such as a moment or a counter."""
    initial = Initial("constant", value)
    return State(tensor_type(shape, dtype), name=name, initial=initial, role=role, trainable=False)


STEP = state("counter/step", (), "int64", 0.0, "counter")
"""The number of steps done: one state for everything in a graph that counts them."""

SEED = State(
    tensor_type((2,), "int64"),
    name="counter/seed",
    initial=Initial("seed", 0.0),
    role="counter",
    trainable=False,
)
"""The program's seed as two words of 32 bits, low word first."""


def as_value(where: str, given: object) -> Value:
    """Return a `Value`; raises `OptionError` that says how to create one."""
    if not isinstance(given, Value):
        raise OptionError(
            f"{where}: an operand must be a graphc value, got {given!r} ({type(given).__name__}); "
            "create one with graphc.input, parameter, full, or constant(array)"
        )
    return given


def as_values(where: str, given: object) -> tuple[Value, ...]:
    """Return several values as a tuple; raises `OptionError` for a single one."""
    if isinstance(given, Value) or not isinstance(given, Iterable):
        raise OptionError(f"{where}: give a list of graphc values, got {given!r}")
    return tuple(as_value(where, value) for value in given)


_LARGEST = {
    dtype: float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    for dtype in DTYPES
    if dtype.kind == "float"
}


def number_of(where: str, given: object, dtype: DType) -> float:
    """Return a number that `dtype` can hold, as a float; raises `OptionError` or `DTypeError`."""
    if isinstance(given, bool | np.bool_) and dtype.kind != "bool":
        given = int(given)
    if not isinstance(given, int | float | np.number | np.bool_):
        cure = "; graphc.constant converts it to a value" if isinstance(given, np.ndarray) else ""
        raise OptionError(
            f"{where}: expected a number, got {quoted(given)} ({type(given).__name__}){cure}"
        )
    try:
        number = float(given)
    except OverflowError:
        number = math.inf
    if dtype.kind == "float":
        if abs(number) > _LARGEST[dtype] and abs(given) != math.inf:
            raise DTypeError(
                f"{where}: {quoted(given)} exceeds {_LARGEST[dtype]:g}, the largest {dtype}"
            )
        return number
    low, high = (0, 1) if dtype.kind == "bool" else _limits(dtype)
    if number != given or number % 1 or not low <= number <= high:
        raise DTypeError(
            f"{where}: {quoted(given)} is not exactly representable as {dtype} (integers from "
            f"{low} to {high}; at most 2**53 next to values); convert the value with graphc.cast"
        )
    return number


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


def apply(op: type[Op], *inputs: Value, attributes: Any = None) -> Node:
    """Return a new node: infer its types, give it the current scope, mirror count and phase."""
    instance = REGISTRY[op.name]
    attributes = op.attributes() if attributes is None else attributes
    for given in inputs:
        as_value(op.name, given)
    return create(instance, inputs, attributes, _context.get())


def create(op: Op, inputs: Sequence[Value], attributes: Any, context: Context) -> Node:
    """Return a new node in an explicit context; errors of its rules name op and scope."""
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
    """Return the graph of everything that `outputs` and `effects` need, in order of creation."""
    roots = list(outputs.values()) + [value for node in effects for value in node.outputs]
    nodes = tuple(ancestors(roots))
    graph = Graph(nodes, dict(outputs))
    kept = frozenset(value for value in graph.values if value in _kept)
    graph = Graph(nodes, dict(outputs), kept)
    check_names(graph)
    return graph


def check_names(graph: Graph) -> None:
    """Raise `GraphError` if two inputs or two states have the same name."""
    for kind, sources in (("inputs", graph.inputs), ("states", graph.states)):
        seen: dict[str, Input | State] = {}
        for source in sources:
            if source.name in seen:
                raise GraphError(
                    f"two {kind} are named {source.name!r}, of types {seen[source.name].type} and "
                    f"{source.type}; build each layer in its own graphc.scope(...), or pass name="
                )
            seen[source.name] = source
