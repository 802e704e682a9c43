"""Arguments of calls by size: those that vary, padding, and comparison with planned calls."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from graphc.errors import OptionError, TorchError, or_all
from graphc.torch.budget.options import Given
from graphc.torch.budget.sizes.conventions import (
    MASK,
    dimension_of,
    followers,
    is_laid_out,
    needs_mask,
    numbers_of,
    order_of,
    padded,
    refuse_last_token,
    refuse_number,
    refuse_too_long,
)
from graphc.torch.budget.sizes.options import (
    Axis,
    Described,
    Requested,
    Size,
    UnplannedError,
    as_given,
    description,
    refuse_other,
    shown,
)
from graphc.torch.budget.trace.measure import bytes_alone

TARGET = "target"
"""The name of the last positional argument of a step with a `loss_fn`."""

Place = int | str
"""The index of a positional argument, or the name of a keyword argument."""


@dataclass(frozen=True)
class Input:
    """A tensor that varies: the axis of each dimension that does, and the number that pads it.

    Without a number, it must have the exact shape of a size. `order` has the dimensions from the
    largest stride to the smallest.
    """

    name: str
    place: Place
    example: tuple[int, ...]
    """The shape in the example."""
    axes: Mapping[int, Axis]
    order: tuple[int, ...]
    number: float | None

    def shape(self, size: Size, shape: Sequence[int] | None = None) -> tuple[int, ...]:
        """Return a shape, by default that in the example, with the lengths of a size."""
        shape = self.example if shape is None else shape
        return tuple(size[self.axes[d]] if d in self.axes else n for d, n in enumerate(shape))


class Arguments:
    """The arguments of a module that vary, found in an example of a call.

    Raises `OptionError` if the options name inputs or dimensions that the example lacks.
    """

    def __init__(
        self,
        module: nn.Module,
        loss_fn: Callable[..., Any] | None,
        example: Given,
        requested: Requested,
    ) -> None:
        self._module, self._has_target = module, loss_fn is not None
        self.pad = requested.pad
        args, kwargs = example
        given = self._by_name(example)
        named = {name for axis in requested.axes for name in axis.names}
        varying = set(self._varying(given, requested.axes))
        self._makes_mask = needs_mask(module, given, varying) and not callable(self.pad)
        args, kwargs = self._with_mask(example)
        given = self._by_name((args, kwargs))
        self._places: dict[str, Place] = {name: n for n, name in enumerate(self._names(args))}
        self._places |= {name: name for name in kwargs}
        self._order = tuple(kwargs)
        self._named = named
        # Inputs have no tensors of the example: the budget does not count stored arguments.
        self.inputs = tuple(self._inputs(given, requested.axes))
        refuse_last_token(module, {each.name for each in self.inputs})
        for size in requested.candidates:
            refuse_too_long(module, {each.name: each.shape(size) for each in self.inputs})

    def _varying(
        self, given: Mapping[str, Any], axes: tuple[Axis, ...]
    ) -> dict[str, dict[int, Axis]]:
        """Return the axes of the inputs that vary: those named, and those that follow them."""
        found: dict[str, dict[int, Axis]] = {}
        for axis in axes:
            for name in axis.names:
                for dimension in axis.dimensions:
                    _add(found, name, _dimension(given, name, dimension, axis), axis)
        for axis in axes:
            length = _length(given, axis, found)
            for name in axis.names:
                if dimension_of(name, given) in found[name]:
                    for other in followers(self._module, name):
                        self._follow(other, given, axis, length, found)
        return found

    def _inputs(self, given: Mapping[str, Any], axes: tuple[Axis, ...]) -> Iterator[Input]:
        """Yield the inputs that vary."""
        found = self._varying(given, axes)
        numbers = numbers_of(self._module, given)
        if isinstance(self.pad, Mapping):
            for name in self.pad:
                if name not in found:
                    raise OptionError(
                        f"pad names {name!r}, which does not vary; {or_all(name, found)}"
                    )
            numbers |= self.pad
        for name, dimensions in found.items():
            tensor, number = given[name], numbers.get(name)
            refuse_number(name, number, tensor.dtype)
            shape, order = tuple(tensor.shape), order_of(tensor)
            yield Input(name, self._places[name], shape, dimensions, order, number)

    def _follow(
        self,
        name: str,
        given: Mapping[str, Any],
        axis: Axis,
        length: int,
        found: dict[str, dict[int, Axis]],
    ) -> None:
        """Add an input that has the same length as an axis by convention, if it is given."""
        own = dimension_of(name, given)
        if name in found or own is None:
            return
        if given[name].shape[own] != length:
            raise OptionError(
                f"{name} follows {axis}, but has the length {given[name].shape[own]} in the "
                f"example, not {length}; give them one length, or name {name} in sizes"
            )
        _add(found, name, own, axis)

    def _names(self, args: Sequence[Any]) -> Iterator[str]:
        """Yield the names of positional arguments."""
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = inspect.signature(self._module.forward).parameters.values()
        own = [each.name for each in parameters if each.kind in kinds]
        has_target = self._has_target and len(args) > 0
        for place in range(len(args) - has_target):
            yield own[place] if place < len(own) else f"args[{place}]"
        if has_target:
            yield TARGET

    def _by_name(self, given: Given) -> dict[str, Any]:
        args, kwargs = given
        return {**dict(zip(self._names(args), args, strict=True)), **kwargs}

    def _with_mask(self, given: Given) -> Given:
        """Return a call with a mask of ones if it has none, and padding needs one."""
        args, kwargs = given
        if not self._makes_mask:
            return args, kwargs
        named = self._by_name(given)
        tokens, vectors = named.get("input_ids"), named.get("inputs_embeds")
        given_one = vectors if tokens is None else tokens
        if named.get(MASK) is not None or not isinstance(given_one, torch.Tensor):
            return args, kwargs
        shape = given_one.shape[:-1] if tokens is None else given_one.shape
        mask, names = given_one.new_ones(shape, dtype=torch.long), list(self._names(args))
        if MASK not in names:
            return args, {**kwargs, MASK: mask}
        place = names.index(MASK)
        return (*args[:place], mask, *args[place + 1 :]), kwargs

    def elements(self, size: Size) -> int:
        """Return the elements of all inputs that vary, by which sizes are compared."""
        return sum(math.prod(each.shape(size)) for each in self.inputs)

    def resized(self, example: Given, size: Size) -> Given:
        """Return the example with the shapes of a size, cut or padded."""
        example = self._padded_by_call(example, size) if callable(self.pad) else example
        example = self._with_mask(example)
        made = {}
        for each in self.inputs:
            tensor = _at(example, each.place)
            shape = each.shape(size)
            with torch.no_grad():
                cut = tensor[tuple(map(slice, shape))]
                found = padded(cut, shape, each.number or 0, each.order)
            made[each.place] = found.requires_grad_(tensor.requires_grad)
        return _replaced(example, made)

    def cut_and_size(self, example: Given, sizes: Sequence[Size]) -> tuple[Given, Size] | None:
        """Return the example and the smallest size to which it can be padded, or None.

        If it is as long as all sizes, it is cut, unless a function pads.
        """
        exact = {a for each in self.inputs if not self._pads(each) for a in each.axes.values()}
        has = {a: each.example[d] for each in self.inputs for d, a in each.axes.items()}
        for size in sizes:
            own = {axis: size[axis] if axis in exact else n for axis, n in has.items()}
            if own != size and all(own[axis] <= size[axis] for axis in size):
                return (example if own == has else self.resized(example, own)), size
        own = {a: n if a in exact else max(1, 3 * n // 4) for a, n in sizes[0].items()}
        if callable(self.pad) or own == sizes[0]:
            return None
        return self.resized(example, own), sizes[0]

    def _pads(self, each: Input) -> bool:
        return callable(self.pad) or each.number is not None

    def fitted(self, given: Given, sizes: Sequence[tuple[Size, Described]]) -> Given:
        """Return a call padded to the first of these sizes that holds it.

        Raises `UnplannedError` if none does, or if the call differs in anything else.
        """
        args, kwargs = self._with_mask(given)
        kwargs = {
            **{name: kwargs[name] for name in self._order if name in kwargs},
            **kwargs,
        }
        lengths = self._lengths((args, kwargs))
        for size, described in sizes:
            if all(self._holds(axis, size, exact, n) for (axis, exact), n in lengths.items()):
                found = self._padded((args, kwargs), size)
                refuse_other(described, description(found), size)
                return found
        has = {axis: n for (axis, _), n in lengths.items()}
        known = ", ".join(shown(size) for size, _ in sizes)
        exact = sorted(each.name for each in self.inputs if not self._pads(each))
        names, numbers = " and ".join(exact), dict.fromkeys(exact, 0)
        cure = f", give a number for {names} to pad, as in pad={numbers}" if exact else ""
        unpadded = " without padding" if exact else ""
        raise UnplannedError(
            f"no planned size holds a call with {shown(has)}{unpadded}; the sizes are {known}. Add "
            f"one that does{cure}, or pass unplanned='plan' to plan such calls when they occur"
        )

    def _lengths(self, given: Given) -> dict[tuple[Axis, bool], int]:
        """Return the length of each axis, and whether a size must have exactly that length."""
        found: dict[Axis, tuple[str, int, bool]] = {}
        for each in self.inputs:
            if callable(self.pad) and each.name not in self._named:
                continue
            tensor = _at(given, each.place)
            count = len(each.example)
            if tensor is not None and getattr(tensor, "ndim", None) != count:
                is_tensor = isinstance(tensor, torch.Tensor)
                has = f"{tensor.ndim} dimensions" if is_tensor else f"type {type(tensor).__name__}"
                raise UnplannedError(
                    f"{each.name} has {has} in this call, but is a tensor of {count} dimensions in "
                    "the planned calls"
                )
            if not isinstance(tensor, torch.Tensor):
                how = "by position" if isinstance(each.place, int) else "by keyword"
                raise UnplannedError(
                    f"the call has no {each.name} that is passed {how} and has {count} "
                    "dimensions, as the planned calls have"
                )
            for dimension, axis in each.axes.items():
                length = tensor.shape[dimension]
                exact = not self._pads(each)
                name, other, is_exact = found.get(axis, (each.name, length, exact))
                if other != length:
                    raise UnplannedError(
                        f"{name} and {each.name} share {axis}, but have lengths {other} and "
                        f"{length}"
                    )
                found[axis] = name, length, exact or is_exact
        return {(axis, exact): length for axis, (_, length, exact) in found.items()}

    def _holds(self, axis: Axis, size: Size, exact: bool, length: int) -> bool:
        return length == size[axis] if exact else length <= size[axis]

    def _padded(self, given: Given, size: Size) -> Given:
        """Return a call with the shapes of a size, as new tensors where they differ from a plan's.

        torch traces calls apart in which two arguments are one tensor, or have other strides.
        """
        if callable(self.pad):
            given = self._padded_by_call(given, size)
        made: dict[Place, torch.Tensor] = {}
        seen: set[int] = set()
        for each in self.inputs:
            tensor = _at(given, each.place)
            shape = each.shape(size, tensor.shape)
            is_shared = id(tensor) in seen
            seen.add(id(tensor))
            if is_laid_out(tensor, shape, each.order) and not is_shared:
                continue
            if tensor.requires_grad:
                raise TorchError(
                    f"{each.name} requires a gradient and has the shape {list(tensor.shape)}; "
                    f"a gradient does not pass through padding to {list(shape)}: pad it before "
                    "the call"
                )
            made[each.place] = padded(tensor, shape, each.number or 0, each.order)
        return _replaced(given, made)

    def _padded_by_call(self, given: Given, size: Size) -> Given:
        args, kwargs = given
        assert callable(self.pad)
        found = self.pad(args, dict(kwargs), as_given(size))
        is_pair = isinstance(found, tuple) and len(found) == 2
        if not is_pair or not isinstance(found[0], tuple | list) or not isinstance(found[1], dict):
            raise OptionError(
                "pad must return a tuple of positional arguments and a dict of keyword arguments, "
                f"got {type(found).__name__}"
            )
        args, kwargs = tuple(found[0]), found[1]
        for each in self.inputs:
            tensor = _at((args, kwargs), each.place)
            if not isinstance(tensor, torch.Tensor):
                raise OptionError(
                    f"pad must return the tensor {each.name} as it is passed in the example, got "
                    f"{type(tensor).__name__}"
                )
            shape = tuple(tensor.shape)
            wanted = {d: size[axis] for d, axis in each.axes.items()}
            if any(d >= len(shape) or shape[d] != n for d, n in wanted.items()):
                raise OptionError(
                    f"pad must pad {each.name} to {shown(size)}, but it has the shape "
                    f"{list(shape)}; an example of a call must not exceed the smallest size"
                )
        return args, kwargs

    def most_copied(self, given: Given) -> int:
        """Return the bytes of arguments that padding to the shapes of this call may have copied."""
        if callable(self.pad):
            tensors = [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]
        else:
            tensors = [_at(given, each.place) for each in self.inputs]
        return sum(bytes_alone(each) for each in tensors if not each.requires_grad)


def _dimension(given: Mapping[str, Any], name: str, dimension: int, axis: Axis) -> int:
    """Return a dimension of a named input, at least 0; raises `OptionError`."""
    if name not in given:
        raise OptionError(f"{axis} names no argument of the example: {or_all(name, given)}")
    tensor = given[name]
    if not isinstance(tensor, torch.Tensor):
        raise OptionError(f"{name} must be a tensor to have planned sizes, got {type(tensor)}")
    if not -tensor.ndim <= dimension < tensor.ndim:
        raise OptionError(
            f"{name} has the shape {list(tensor.shape)}, and so no dimension {dimension}; "
            f"dimensions are 0 to {tensor.ndim - 1}"
        )
    return int(dimension % tensor.ndim)


def _length(given: Mapping[str, Any], axis: Axis, found: Mapping[str, Mapping[int, Axis]]) -> int:
    """Return the length of an axis in the example; raises `OptionError` if inputs differ."""
    lengths = {
        f"{name}[{dimension}]": given[name].shape[dimension]
        for name in axis.names
        for dimension, own in found[name].items()
        if own is axis
    }
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{name}={length}" for name, length in lengths.items())
        raise OptionError(f"{axis} must have one length, but the example has {listed}")
    return int(next(iter(lengths.values())))


def _add(found: dict[str, dict[int, Axis]], name: str, dimension: int, axis: Axis) -> None:
    if dimension in found.setdefault(name, {}):
        raise OptionError(f"dimension {dimension} of {name} is named twice; name it once")
    found[name][dimension] = axis


def _at(given: Given, place: Place) -> Any:
    """Return the argument at a place, or None."""
    args, kwargs = given
    if isinstance(place, int):
        return args[place] if place < len(args) else None
    return kwargs.get(place)


def _replaced(given: Given, made: Mapping[Place, Any]) -> Given:
    """Return a call with other arguments at some places."""
    args, kwargs = given
    return (
        tuple(made.get(place, each) for place, each in enumerate(args)),
        {name: made.get(name, each) for name, each in kwargs.items()},
    )
