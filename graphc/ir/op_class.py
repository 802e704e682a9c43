"""Checks of op classes when they are created, and collection of their gradient rules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from graphc.errors import GraphError, did_you_mean, quoted
from graphc.ir.expression import Expression, parse

if TYPE_CHECKING:
    from graphc.ir.op import Op


@dataclass(frozen=True, slots=True)
class GradientRule:
    """The method that returns the gradient of one input, and the names of values that it reads."""

    method: Callable[..., Any]
    reads: tuple[str, ...]


def fail(cls: type[Op], rule: str) -> NoReturn:
    """Raise `GraphError` with a message about the op class `cls` that breaks `rule`."""
    raise GraphError(f"op {getattr(cls, 'name', '')!r} ({cls.__qualname__}): {rule}")


def check_class(cls: type[Op], base: type[Op], known: Mapping[str, Op]) -> None:
    """Raise `GraphError`, with the rule that is broken, for an invalid op class.

    `base` is `Op`, and `known` has the existing ops by name.
    """
    check_declared(cls)
    _check_names(cls)
    if cls.name in known:
        fail(cls, f"{type(known[cls.name]).__qualname__} already has this name")
    if not hasattr(cls, "infer"):
        fail(cls, "it has no `infer`; write one that returns the output types")
    names = [name.lstrip("*") for name in cls.inputs + cls.outputs]
    if len(set(names)) != len(names):
        fail(cls, f"inputs and outputs must have different names, got {names}")
    inputs = {name.lstrip("*") for name in cls.inputs}
    outputs = {name.lstrip("*") for name in cls.outputs}
    for relation in ("views", "gathers"):
        if (source := getattr(cls, relation)) is not None and source not in inputs:
            fail(cls, f"`{relation}` names {source!r}, which is not an input")
    for relation, oracle in (("views", "numpy_views"), ("gathers", "numpy_parts")):
        if getattr(cls, relation) is not None and getattr(cls, oracle) is getattr(base, oracle):
            fail(cls, f"it has `{relation}` but no `{oracle}`, which the plan checker needs")
    if unknown := set(cls.strided_axes) - {*inputs, *outputs}:
        fail(cls, f"`strided_axes` names {sorted(unknown)}, which are neither inputs nor outputs")
    relations = [(o, i) for o, taken in cls.may_overwrite.items() for i in taken]
    for output, source in relations + list(cls.must_overwrite.items()):
        if output not in outputs or source not in inputs:
            fail(
                cls,
                f"a buffer relation must map an output to an input, got {output!r} over {source!r}",
            )
    for output, sources in cls.independent.items():
        if output not in outputs or not inputs.issuperset(sources):
            fail(cls, f"`independent` must map an output to inputs, got {output!r}: {sources}")
    single = {cls.views, *cls.must_overwrite, *cls.must_overwrite.values()}
    if several := sorted(f"*{name}" for name in single if f"*{name}" in cls.inputs + cls.outputs):
        fail(
            cls, f"{several} cannot be viewed or replaced, because it accepts any number of values"
        )
    _check_kernel(cls)


def check_declared(cls: type[Op]) -> None:
    """Raise `GraphError` unless an op class has valid names, and attributes of a valid kind."""
    name: object = cls.__dict__.get("name")
    if not isinstance(name, str) or not name.isidentifier():
        fail(cls, f"`name` must be an identifier such as 'square_plus', got {quoted(name)}")
    for kind in ("inputs", "outputs"):
        names: object = getattr(cls, kind, None)
        if not isinstance(names, tuple) or not all(isinstance(name, str) for name in names):
            fail(cls, f"`{kind}` is a tuple of names, such as ('x',), got {names!r}")
    if not is_dataclass(cls.attributes) or not cls.attributes.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        fail(cls, "`attributes` must be a frozen dataclass")


def _check_names(cls: type[Op]) -> None:
    """Raise `GraphError` for an attribute that no base has; methods may have any name."""
    known = {
        name for base in cls.__mro__[1:] for name in (*vars(base), *inspect.get_annotations(base))
    }
    for name, given in vars(cls).items():
        is_method = hasattr(given, "__get__") and not isinstance(given, type)
        if not (name in known or name.startswith(("_", "gradient")) or is_method):
            cure = did_you_mean(name, known) or f"write _{name} if it is your own"
            fail(cls, f"ops have no attribute `{name}`; {cure}")


def check_cures(cls: type[Op]) -> None:
    """Raise `GraphError` unless the inputs in `instead_of_gradient` have no gradient rule."""
    without = {name.lstrip("*") for name in cls.inputs} - set(cls.gradients)
    if wrong := sorted(set(cls.instead_of_gradient) - without):
        fail(cls, f"`instead_of_gradient` must name inputs without a gradient rule, got {wrong}")


def _check_kernel(cls: type[Op]) -> None:
    """Raise `GraphError` unless an op has a kernel whose parameters are its inputs and outputs."""
    kernel = getattr(cls, "kernel", None)
    if kernel is None:
        if cls.views is None:
            fail(cls, "it has no `kernel`; only an op that is always a view may omit it")
        return
    parameters = list(_signature(cls, "kernel", kernel, ("record", "node")).values())
    kinds = {parameter.kind for parameter in parameters}
    if inspect.Parameter.VAR_KEYWORD in kinds:
        return  # a family's kernel, generated from the expression
    given = [("*" if p.kind is p.VAR_POSITIONAL else "") + p.name for p in parameters]
    expected = list(cls.inputs) + [name.lstrip("*") for name in cls.outputs]
    if given != expected:
        fail(cls, f"`kernel` takes {given} after `record, node`, but the op declares {expected}")


def gradient_rules(cls: type[Op]) -> dict[str, GradientRule]:
    """Return input → gradient rule, from the methods of an op class named ``gradient...``."""
    inputs = [name.lstrip("*") for name in cls.inputs]
    outputs = [name.lstrip("*") for name in cls.outputs]
    known = {*inputs, *outputs, *(f"d{output}" for output in outputs)}
    rules = {}
    for attribute in dir(cls):
        if attribute == "gradient":
            if len(inputs) != 1:
                fail(cls, "`gradient` is for ops with one input; write one `gradient_<input>` each")
            target = inputs[0]
        elif attribute.startswith("gradient_"):
            target = attribute.removeprefix("gradient_")
            if target not in inputs:
                fail(cls, f"`{attribute}` does not belong to an input; inputs are {inputs}")
        else:
            continue
        method = getattr(cls, attribute)
        parameters = _signature(cls, attribute, method, ("node",))
        for name, parameter in parameters.items():
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                fail(
                    cls, f"`{attribute}` has the parameter `{parameter}`; name each value it reads"
                )
            if name not in known:
                fail(
                    cls,
                    f"`{attribute}` reads {name!r}, which is not an input {inputs}, "
                    f"an output {outputs} or the gradient of an output",
                )
        reads = tuple(parameters)
        incoming = [f"d{output}" for output in outputs]
        if reads and not set(reads) & set(incoming):
            fail(
                cls,
                f"`{attribute}` reads {list(reads)} but no gradient of an output; add "
                f"{' or '.join(incoming)} to its parameters, or take only `node` and return None "
                "for a gradient of 0",
            )
        rules[target] = GradientRule(method, reads)
    return rules


def _signature(
    cls: type[Op], name: str, method: Any, first: tuple[str, ...]
) -> dict[str, inspect.Parameter]:
    """Return the parameters of a method after ``self`` and those in `first`.

    Raises `GraphError` unless its parameters begin with these.
    """
    if not callable(method):
        fail(cls, f"`{name}` is a method, got {method!r}")
    parameters = dict(inspect.signature(method).parameters)
    given, start = list(parameters), 1 + len(first)
    if given[1:start] != list(first):
        after = ", ".join(first)
        fail(cls, f"`{name}` takes {given}; write `def {name}(self, {after}, ...)`")
    return {key: parameters[key] for key in given[start:]}


def expression_of(cls: type[Op], what: str, source: str, known: Collection[str]) -> Expression:
    """Return a parsed expression; raises `GraphError` if it reads names that are not in `known`."""
    try:
        parsed = parse(source)
    except GraphError as error:
        fail(cls, f"{what}: {error}")
    if unknown := sorted(parsed.names.difference(known)):
        fail(cls, f"{what} = {source!r} reads {unknown}; it may read {sorted(known)}")
    if cls.only_floats and (wrong := parsed.bitwise):
        fail(cls, f"{what} = {source!r} uses {wrong}, which floats lack; use + - * / // % **")
    return parsed


def attribute_names(cls: type[Op]) -> set[str]:
    """Return the names of the attributes of an op class."""
    return {field.name for field in fields(cls.attributes)}
