"""Checks of op classes when they are created, and collection of their gradient rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from typing import TYPE_CHECKING, Any

from graphc.errors import GraphError

if TYPE_CHECKING:
    from graphc.ir.op import Op


@dataclass(frozen=True, slots=True)
class GradientRule:
    """The method that differentiates by one input, and the names of the values that it reads."""

    method: Callable[..., Any]
    reads: tuple[str, ...]


def _fail(cls: type[Op], rule: str) -> None:
    raise GraphError(f"op {cls.name!r} ({cls.__qualname__}): {rule}")


def check_class(cls: type[Op], base: type[Op], known: Mapping[str, Op]) -> None:
    """Raise `GraphError`, with the rule that is broken, for an invalid op class.

    `base` is the class of all ops, and `known` has those created before, by name.
    """
    if cls.name in known:
        _fail(cls, f"{type(known[cls.name]).__qualname__} already has this name")
    if not is_dataclass(cls.attributes) or not cls.attributes.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        _fail(cls, "`attributes` must be a frozen dataclass")
    if not hasattr(cls, "infer"):
        _fail(cls, "it has no `infer`")
    names = [name.lstrip("*") for name in cls.inputs + cls.outputs]
    if len(set(names)) != len(names):
        _fail(cls, f"inputs and outputs must have different names, got {names}")
    inputs = {name.lstrip("*") for name in cls.inputs}
    outputs = {name.lstrip("*") for name in cls.outputs}
    for relation in ("views", "gathers"):
        if (source := getattr(cls, relation)) is not None and source not in inputs:
            _fail(cls, f"`{relation}` names {source!r}, which is not an input")
    for relation, oracle in (("views", "numpy_views"), ("gathers", "numpy_parts")):
        if getattr(cls, relation) is not None and getattr(cls, oracle) is getattr(base, oracle):
            _fail(cls, f"it has `{relation}` but no `{oracle}`, which the plan checker needs")
    if unknown := set(cls.strided_axes) - {*inputs, *outputs}:
        _fail(cls, f"`strided_axes` names {sorted(unknown)}, which are neither inputs nor outputs")
    relations = [(o, i) for o, taken in cls.may_overwrite.items() for i in taken]
    for output, source in relations + list(cls.must_overwrite.items()):
        if output not in outputs or source not in inputs:
            _fail(
                cls,
                f"a buffer relation must map an output to an input, got {output!r} over {source!r}",
            )
    for output, sources in cls.independent.items():
        if output not in outputs or not inputs.issuperset(sources):
            _fail(cls, f"`independent` must map an output to inputs, got {output!r}: {sources}")
    single = {cls.views, *cls.must_overwrite, *cls.must_overwrite.values()}
    if several := sorted(f"*{name}" for name in single if f"*{name}" in cls.inputs + cls.outputs):
        _fail(
            cls, f"{several} cannot be viewed or replaced, because it accepts any number of values"
        )
    _check_kernel(cls)


def check_cures(cls: type[Op]) -> None:
    """Raise `GraphError` unless the inputs in `instead_of_gradient` have no gradient rule."""
    without = {name.lstrip("*") for name in cls.inputs} - set(cls.gradients)
    if wrong := sorted(set(cls.instead_of_gradient) - without):
        _fail(cls, f"`instead_of_gradient` must name inputs without a gradient rule, got {wrong}")


def _check_kernel(cls: type[Op]) -> None:
    """Raise `GraphError` unless an op has a kernel whose parameters are its inputs and outputs."""
    kernel = getattr(cls, "kernel", None)
    if kernel is None:
        if cls.views is None:
            _fail(cls, "it has no `kernel`; only an op that is always a view may omit it")
        return
    parameters = list(inspect.signature(kernel).parameters.values())[3:]
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return  # a family's kernel, generated from the expression
    given = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in parameters]
    expected = list(cls.inputs) + [name.lstrip("*") for name in cls.outputs]
    if given != expected:
        _fail(cls, f"`kernel` takes {given} after `record, node`, but the op declares {expected}")


def gradient_rules(cls: type[Op]) -> dict[str, GradientRule]:
    """Return input → gradient rule, from the methods of an op class named ``gradient...``."""
    inputs = [name.lstrip("*") for name in cls.inputs]
    outputs = [name.lstrip("*") for name in cls.outputs]
    known = {*inputs, *outputs, *(f"d{output}" for output in outputs)}
    rules = {}
    for attribute in dir(cls):
        if attribute == "gradient":
            if len(inputs) != 1:
                _fail(
                    cls, "`gradient` is for ops with one input; write one `gradient_<input>` each"
                )
            target = inputs[0]
        elif attribute.startswith("gradient_"):
            target = attribute.removeprefix("gradient_")
            if target not in inputs:
                _fail(cls, f"`{attribute}` does not belong to an input; inputs are {inputs}")
        else:
            continue
        method = getattr(cls, attribute)
        reads = tuple(list(inspect.signature(method).parameters)[2:])
        for name in reads:
            if name not in known:
                _fail(
                    cls,
                    f"`{attribute}` reads {name!r}, which is not an input {inputs}, "
                    f"an output {outputs} or the gradient of an output",
                )
        rules[target] = GradientRule(method, reads)
    return rules
