"""Value numbering of the tensors of an FX graph: equal numbers imply equal bits.

A number identifies an op and the numbers of its operands, recursively down to placeholders. So
graphs can be compared that recompute, reorder or overwrite different tensors. The generator state
is an operand of a random op, and each draw advances it. Numbers describe the contents of storages:
a write through one tensor is visible through all tensors that share its storage.
"""

from __future__ import annotations

import operator
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graphc.torch.private import run_and_save_rng_state, run_with_rng_state

aten = torch.ops.aten

NORM = aten._native_batch_norm_legit_functional.default
NORM_ALONE = aten._native_batch_norm_legit.no_stats
"""The norm without running statistics; its results are the first results of `NORM`."""

COMMUTE = ("aten.add.Tensor", "aten.mul.Tensor")
"""Ops that are bitwise commutative if they have two operands and no other argument."""

STATISTICS = 3
"""Index of the first result of `NORM` that depends on running statistics in training."""

NORM_BACKWARD = {
    aten.native_batch_norm_backward.default: 7,
    aten.cudnn_batch_norm_backward.default: None,
    aten.miopen_batch_norm_backward.default: None,
}
"""Maps each op to the operand that says whether it trains; None if it always trains.

In training, operands 3 and 4 do not influence the results.
"""

RECURRENT = aten.mkldnn_rnn_layer.default
"""oneDNN's recurrent layer; its last operand says whether it trains.

Only then does its last result hold the workspace for the backward pass.
"""

MOVES = (aten.clone.default, aten.permute.default)
"""Ops that return the elements of their operand, possibly with permuted axes."""

GPU_BLOCK = 512
"""Bytes per block of torch's allocator for GPUs."""


class Numbers:
    """A table of value numbers."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}
        self._moved: dict[int, tuple[int, tuple[int, ...]]] = {}

    def of(self, *parts: Hashable) -> int:
        """Return the number of these parts; new parts get a new number."""
        return self._known.setdefault(parts, len(self._known))

    def move(self, content: int, before: int, axes: tuple[int, ...]) -> None:
        """Record that `content` has the elements of `before`, with its axes in this order."""
        first, order = self.elements(before)
        order = tuple((order or range(len(axes)))[axis] for axis in axes)
        self._moved[content] = first, () if order == tuple(range(len(order))) else order

    def elements(self, content: int) -> tuple[int, tuple[int, ...]]:
        """Return the content that this one copies, and the axis order; () for the identity."""
        return self._moved.get(content, (content, ()))


@dataclass(eq=False)
class Storage:
    """A contiguous block of bytes; an `outside` storage exists before and after the step."""

    bytes: int
    name: str
    fake: torch.Tensor
    """The tensor that it was allocated for, which gives its shape and type."""
    outside: bool = False
    version: int = 0
    written: int = -1
    """The number of all writes after the storage was produced; -1 without writes."""
    writer: str = ""
    """The name of the last node that wrote."""


@dataclass(frozen=True)
class Tensor:
    """The value of a variable: the content of a storage at this version."""

    content: int
    storage: Storage
    version: int


Tree = Any
"""A `Tensor`, a tuple of trees, or a value that is not a tensor."""


def tensors_in(tree: Tree) -> Iterator[Tensor]:
    """Yield the tensors of a tree in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple):
        for each in tree:
            yield from tensors_in(each)


@dataclass
class Done:
    """A visited node: the number of its computation, and the storages that it produces."""

    node: fx.Node
    computes: int | None
    """The number of the computation; None for getitems and constants."""
    draws: int | None = None
    """For a random op, the number without the generator state."""
    makes: list[Storage] = field(default_factory=list)
    state: Storage | None = None
    """The storage of a random state that the node saves."""
    written: list[Storage] = field(default_factory=list)
    overwritten: fx.Node | None = None
    """An operand that another node has overwritten before this read."""


class Walk:
    """A node-by-node traversal of graphs; `env` maps variables of the current graph to values.

    Random states, one per device, persist from graph to graph. In a graph traced by torch
    (`is_traced`), every recurrent layer counts as training: torch traces some for inference, whose
    backward pass would fail.
    """

    def __init__(self, numbers: Numbers, is_traced: bool = False) -> None:
        self.numbers, self.is_traced = numbers, is_traced
        self.env: dict[fx.Node, Tree] = {}
        self._states: dict[str, int] = {}
        self._sources: dict[Hashable, Storage] = {}
        self._drawn_from = -1

    def outside(self, node: fx.Node, *parts: Hashable) -> Tree:
        """Return the value of a source that exists before the step, identified by `parts`."""
        fake = node.meta.get("val")
        if not isinstance(fake, torch.Tensor):
            return self.numbers.of(*parts)
        made = Storage(storage_bytes(fake), node.name, fake, outside=True)
        # torch traces tangents in one storage; at run time, each has its own.
        key = parts if parts[0] == "tangent" else _key(fake)
        storage = self._sources.setdefault(key, made)
        return Tensor(self.numbers.of(*parts), storage, storage.version)

    def do(self, node: fx.Node) -> Done:
        """Visit a node of the current graph that is neither placeholder nor output."""
        if node.op == "get_attr":
            self.env[node] = self.outside(node, "constant", str(node.target))
            return Done(node, None)
        if node.target is operator.getitem:
            self.env[node] = self._variable(node.args[0])[node.args[1]]
            return Done(node, None)
        return self._compute(node)

    def seen(self, node: fx.Node) -> Tree:
        """Return the numbers of the contents that a read of the variable now returns."""
        return self._seen(self._variable(node))

    def _variable(self, node: Any) -> Tree:
        if node not in self.env:
            raise KeyError(node)
        return self.env[node]

    def _seen(self, tree: Tree) -> Hashable:
        if isinstance(tree, Tensor):
            if tree.version == tree.storage.version:
                return tree.content
            return self.numbers.of("seen", tree.content, tree.storage.written)
        return tuple(map(self._seen, tree)) if isinstance(tree, tuple) else tree

    def _compute(self, node: fx.Node) -> Done:
        target, args, kwargs = node.target, node.args, dict(node.kwargs)
        state: int | None = None
        saves = target is run_and_save_rng_state
        if saves:
            target, *args = args
        elif target is run_with_rng_state:
            given, target, *args = args
            state = self.seen(given)
        value = node.meta.get("val")
        if saves:
            kept, value = value  # the saved state of any generator is on the CPU
        named = [item for item in sorted(kwargs.items()) if item[0] not in _results_given(target)]
        given = [*self._given(target, tuple(args)), *map(self._described, named)]
        if _plain_name(target) in COMMUTE and len(given) == 2:
            given.sort(key=repr)
        number = plain = self.numbers.of(_plain_name(target), *given)
        is_random = _draws(target, tuple(args), kwargs)
        if is_random:
            number = self._drawn(plain, _device_of(value), state)
        done = Done(node, number, plain if is_random else None, overwritten=self._overwritten(node))
        results = self._results(node, value, target, number, tuple(args), done)
        if saves:
            done.state = Storage(storage_bytes(kept), node.name, kept)
            results = (Tensor(self._drawn_from, done.state, 0), results)
        self.env[node] = results
        if target in MOVES:
            count = node.meta["val"].dim()
            axes = args[1] if target is aten.permute.default else range(count)
            before = self.seen(args[0])
            self.numbers.move(results.content, before, tuple(axis % count for axis in axes))
        return done

    def _drawn(self, plain: int, device: str, state: int | None) -> int:
        """Return the number of a random op; it advances the generator unless given a state."""
        if state is not None:
            return self.numbers.of("drawn", plain, state)
        self._drawn_from = self._states.get(device, self.numbers.of("state", device))
        number = self.numbers.of("drawn", plain, self._drawn_from)
        self._states[device] = self.numbers.of("after", number)
        return number

    def _given(self, target: Any, args: tuple[Any, ...]) -> tuple[Hashable, ...]:
        if _leaves_statistics_out(target, args):
            args = (*args[:3], *args[5:])
        if target is RECURRENT:
            args = args[:-1]
        return tuple(map(self._described, args))

    def _described(self, argument: Any) -> Hashable:
        if isinstance(argument, fx.Node):
            return ("node", self.seen(argument))
        if isinstance(argument, list | tuple):
            return tuple(map(self._described, argument))
        if isinstance(argument, dict):
            return tuple((key, self._described(each)) for key, each in argument.items())
        return (type(argument).__name__, repr(argument))  # 1, 1.0 and True are equal in Python

    def _overwritten(self, node: fx.Node) -> fx.Node | None:
        """Return the first operand that was overwritten after it was produced, or None."""
        for each in node.all_input_nodes:
            if any(t.version != t.storage.version for t in tensors_in(self.env[each])):
                return each
        return None

    def _results(
        self,
        node: fx.Node,
        value: Any,
        target: Any,
        number: int,
        args: tuple[Any, ...],
        done: Done,
    ) -> Tree:
        """Return the results of a node, in storages of its operands or in new storages."""
        returns = getattr(getattr(target, "_schema", None), "returns", ())
        if isinstance(value, tuple) and 1 < len(returns) < len(value):
            value = value[: len(returns)]
        known = self._storages_of_operands(node)
        written = self._write(node, target, args, done)
        more = self._last_results(target, args)

        def result(fake: Any, path: tuple[int, ...]) -> Tree:
            if isinstance(fake, list | tuple):
                return tuple(result(each, (*path, index)) for index, each in enumerate(fake))
            if not isinstance(fake, torch.Tensor):
                return fake
            index = path[0] if path else 0
            storage = written.get(index) or known.get(_key(fake))
            if storage is None:
                storage = known[_key(fake)] = Storage(storage_bytes(fake), node.name, fake)
                done.makes.append(storage)
            beside = more if index >= STATISTICS else ()
            return Tensor(self.numbers.of("result", number, path, beside), storage, storage.version)

        return result(value, ())

    def _last_results(self, target: Any, args: tuple[Any, ...]) -> Hashable:
        """Return additional inputs of the last results of a training norm or recurrent layer."""
        if target is NORM and args[5]:
            return tuple(map(self._described, args[3:5]))
        if target is RECURRENT:
            return ("trains", self.is_traced or bool(args[-1]))
        return ()

    def _storages_of_operands(self, node: fx.Node) -> dict[int, Storage]:
        """Return the storages of a node's operands, by the key of the fake storage."""
        found: dict[int, Storage] = {}
        for each in node.all_input_nodes:
            fakes = fakes_in(each.meta.get("val"))
            found.update(
                (_key(fake), tensor.storage)
                for fake, tensor in zip(fakes, tensors_in(self.env[each]), strict=False)
            )
        return found

    def _write(
        self, node: fx.Node, target: Any, args: tuple[Any, ...], done: Done
    ) -> dict[int, Storage]:
        """Record the writes of an op; return the written storages that its results alias."""
        schema = getattr(target, "_schema", None)
        found: dict[int, Storage] = {}
        if schema is None or not schema.is_mutable:
            return found
        results = [each.alias_info for each in schema.returns]
        for declared, argument in _arguments(schema, args, node.kwargs):
            alias = declared.alias_info
            if alias is None or not alias.is_write or argument is None:
                continue
            for each in argument if isinstance(argument, list | tuple) else (argument,):
                (tensor,) = tensors_in(self.env[each])
                storage = tensor.storage
                storage.version += 1
                storage.written = self.numbers.of("written", storage.written, done.computes)
                storage.writer = node.name
                done.written.append(storage)
                for index, result in enumerate(results):
                    if result is not None and result.before_set & alias.before_set:
                        found[index] = storage
        return found


def _arguments(schema: Any, args: tuple[Any, ...], kwargs: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each declared argument of a schema with the argument given for it."""
    for index, declared in enumerate(schema.arguments):
        given = args[index] if index < len(args) else kwargs.get(declared.name)
        yield declared, given


def _draws(target: Any, args: tuple[Any, ...], kwargs: Any) -> bool:
    """Return whether an op draws random numbers; attention without dropout does not."""
    schema = getattr(target, "_schema", None)
    for declared, given in _arguments(schema, args, kwargs) if schema is not None else ():
        if declared.name == "dropout_p":
            return bool(given)
    # A wrapper calls ops that write into their operands; its first operand is the op.
    called = (getattr(each, "tags", ()) for each in (target, *args[:1]))
    return any(torch.Tag.nondeterministic_seeded in tags for tags in called)


def _leaves_statistics_out(target: Any, args: tuple[Any, ...]) -> bool:
    """Return whether a norm or its backward pass trains, so operands 3 and 4 are ignored."""
    if target is NORM:
        return bool(args[5])
    if target not in NORM_BACKWARD:
        return False
    index = NORM_BACKWARD[target]
    return index is None or bool(args[index])


def _results_given(target: Any) -> frozenset[str]:
    """Return the names of the out arguments of an op."""
    arguments = getattr(getattr(target, "_schema", None), "arguments", ())
    return frozenset(each.name for each in arguments if each.is_out)


def _plain_name(target: Any) -> str:
    """Return the name of an op; in-place and out variants get the functional op's name."""
    if target is NORM_ALONE:
        return str(NORM)
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(target)
    name, overload = schema.name, schema.overload_name or "default"
    if _results_given(target):
        overload = "default"
    if schema.is_mutable and name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    return f"{name.replace('::', '.')}.{overload}"


def fakes_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the fake tensors in a node's recorded value."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from fakes_in(each)


def in_blocks(count: int, device: torch.device) -> int:
    """Return the bytes that torch's allocator reserves for `count`: whole blocks on a GPU."""
    return count + -count % GPU_BLOCK if device.type == "cuda" else count


def storage_bytes(fake: torch.Tensor) -> int:
    """Return the bytes that torch's allocator reserves for a tensor's storage."""
    return in_blocks(int(fake.untyped_storage().nbytes()), fake.device)


def _key(fake: torch.Tensor) -> int:
    return int(fake.untyped_storage()._cdata)


def _device_of(value: Any) -> str:
    return next((str(fake.device) for fake in fakes_in(value)), "cpu")
