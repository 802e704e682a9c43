"""The rules by which ops become kernels: one registry, open to ops from outside this package.

A rule takes a node and the places of its values and gives the node's calls. It is registered in the
file in which it is written, under the op's name, or under a class for all ops derived from it. An
op that is given by expressions (`Elementwise`) has the rule of that class and needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.operands import Places
from graphc.errors import OptionError
from graphc.ir.graph import Node
from graphc.ir.op import Op
from graphc.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """The options of a step on the products that a BLAS computes."""

    tf32: bool = False
    """Whether float32 products may round their operands to 10 bits of mantissa."""
    epilogues: bool = True
    """Whether biases and activations are part of products, where a BLAS has such epilogues."""


Rule = Callable[[Node, Places], NodeCalls]
ProductRule = Callable[[Node, Places, ProductOptions], NodeCalls]
Key = str | type[Op]

_RULES: dict[Key, ProductRule] = {}

_WITH_PROGRAMS: set[Key] = set()
"""The ops whose rules give nothing but programs, whatever the device."""


def kernels_of(*ops: Key) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these ops."""

    def register(rule: Rule) -> Rule:
        _register(ops, lambda node, places, options: rule(node, places))
        return rule

    return register


def programs_of(*ops: Key) -> Callable[[Rule], Rule]:
    """Register the decorated function, which gives nothing but programs, as the rule of these
    ops on every kind of device."""

    def register(rule: Rule) -> Rule:
        _WITH_PROGRAMS.update(ops)
        return kernels_of(*ops)(rule)

    return register


def products_of(*ops: Key) -> Callable[[ProductRule], ProductRule]:
    """Register the decorated function as the rule of ops whose work is products of a BLAS."""

    def register(rule: ProductRule) -> ProductRule:
        _register(ops, rule)
        return rule

    return register


StrideRule = Callable[[Node, str, TensorType, tuple[int, ...]], bool]
"""Whether the kernels of a node read or write the operand of that name with these byte strides."""

_STRIDE_RULES: dict[type[Op], StrideRule] = {}


def strides_of(*ops: type[Op]) -> Callable[[StrideRule], StrideRule]:
    """Register the decorated function as what says which strides the kernels of these ops take.

    Ops need none that take any strides of all operands (`Op.any_strides`), or no more than their
    NumPy kernels do (`Op.strided_axes`).
    """

    def register(rule: StrideRule) -> StrideRule:
        for op in ops:
            if op in _STRIDE_RULES:
                raise OptionError(f"{op.__name__} has a rule for its strides already")
            _STRIDE_RULES[op] = rule
        return rule

    return register


def stride_rule_of(op: Op) -> StrideRule | None:
    """The stride rule of the nearest class of an op that has one; None where none has."""
    return next((_STRIDE_RULES[key] for key in type(op).__mro__ if key in _STRIDE_RULES), None)


def rule_of(op: Op) -> ProductRule | None:
    """The rule of an op: its own, else that of the nearest class with one; None without any."""
    key = _key_of(op)
    return None if key is None else _RULES[key]


def gives_programs(op: Op) -> bool:
    """Whether the rule of an op gives programs alone, which every kind of device can run."""
    return _key_of(op) in _WITH_PROGRAMS


def _key_of(op: Op) -> Key | None:
    """What the rule of an op is registered under."""
    keys: tuple[Key, ...] = (op.name, *type(op).__mro__)
    return next((key for key in keys if key in _RULES), None)


def _register(ops: tuple[Key, ...], rule: ProductRule) -> None:
    for op in ops:
        if op in _RULES:
            raise OptionError(f"{op} has a rule for its kernels already")
        _RULES[op] = rule
