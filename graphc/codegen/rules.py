"""Rules that map ops to kernels: one registry, open to ops from outside this package.

A rule takes a node and the places of its values and returns the node's calls. It is registered in
the file in which it is written, under the op's name, or under a class for all ops derived from it.
An op given by expressions (`Elementwise`) has the rule of that class and needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.operands import Places
from graphc.errors import OptionError
from graphc.ir.graph import Node
from graphc.ir.op import Op
from graphc.ir.types import TensorType


@dataclass(frozen=True, slots=True)
class ProductOptions:
    """Options of a training step for BLAS products."""

    tf32: bool = False
    """True if float32 products may round their operands to 10 bits of mantissa."""
    epilogues: bool = True
    """True if biases and activations are epilogues of products where a BLAS supports them."""


Rule = Callable[[Node, Places], NodeCalls]
ProductRule = Callable[[Node, Places, ProductOptions], NodeCalls]
Key = str | type[Op]

Registered = TypeVar("Registered")


class Registry(Generic[Registered]):
    """A registry of rules, by the name of an op or by a class for all ops derived from it."""

    def __init__(self, purpose: str) -> None:
        self.purpose = purpose
        self.rules: dict[Key, Registered] = {}

    def register(self, ops: tuple[Key, ...], rule: Registered) -> None:
        """Register a rule for some ops; raises `OptionError` if an op already has a rule here."""
        for op in ops:
            if op in self.rules:
                name = op if isinstance(op, str) else op.__name__
                raise OptionError(
                    f"{name} already has a rule for its {self.purpose}; register one only once"
                )
            self.rules[op] = rule

    def key_of(self, op: Op) -> Key | None:
        """Return the key under which an op's rule is registered: its name or its nearest class;
        None if neither is."""
        keys: tuple[Key, ...] = (op.name, *type(op).__mro__)
        return next((key for key in keys if key in self.rules), None)

    def rule_of(self, op: Op) -> Registered | None:
        """Return the rule of an op: its own, else the rule of its nearest class that has one, else
        None."""
        key = self.key_of(op)
        return None if key is None else self.rules[key]


_RULES: Registry[ProductRule] = Registry("kernels")

_WITH_PROGRAMS: set[Key] = set()
"""The ops whose rules return nothing but programs, on every device."""


def kernels_of(*ops: Key) -> Callable[[Rule], Rule]:
    """Return a decorator that registers a function as the kernel rule of these ops."""

    def register(rule: Rule) -> Rule:
        _RULES.register(ops, lambda node, places, options: rule(node, places))
        return rule

    return register


def programs_of(*ops: Key) -> Callable[[Rule], Rule]:
    """Register the decorated function as the rule of these ops on every kind of device. The
    function returns programs alone.
    """

    def register(rule: Rule) -> Rule:
        _WITH_PROGRAMS.update(ops)
        return kernels_of(*ops)(rule)

    return register


def products_of(*ops: Key) -> Callable[[ProductRule], ProductRule]:
    """Register the decorated function as the rule of ops whose work is BLAS products."""

    def register(rule: ProductRule) -> ProductRule:
        _RULES.register(ops, rule)
        return rule

    return register


StrideRule = Callable[[Node, str, TensorType, tuple[int, ...]], bool]
"""A predicate: true if the kernels of a node accept these byte strides of the operand of that
name."""

_STRIDE_RULES: Registry[StrideRule] = Registry("strides")


def strides_of(*ops: type[Op]) -> Callable[[StrideRule], StrideRule]:
    """Register the decorated function as the stride rule of these ops.

    Ops need no stride rule if they accept any strides (`Op.any_strides`), or only those that their
    NumPy kernels accept (`Op.strided_axes`).
    """

    def register(rule: StrideRule) -> StrideRule:
        _STRIDE_RULES.register(ops, rule)
        return rule

    return register


def stride_rule_of(op: Op) -> StrideRule | None:
    """Return the stride rule of an op: that of its nearest class that has one, else None."""
    return _STRIDE_RULES.rule_of(op)


def rule_of(op: Op) -> ProductRule | None:
    """Return the kernel rule of an op: its own, else the rule of its nearest class that has one,
    else None."""
    return _RULES.rule_of(op)


def gives_programs(op: Op) -> bool:
    """Return true if the rule of an op returns programs alone, which every kind of device can
    run."""
    return _RULES.key_of(op) in _WITH_PROGRAMS
