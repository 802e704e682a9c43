"""The rules by which ops that are no programs become native kernels.

A rule takes a node and the places of its values, and gives the node's calls. It is registered in
the file in which it is written, as the rules of generated GPU kernels are.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.codegen.llvm.kernel import NativeCalls
from graphc.codegen.rules import Key, Registry, StrideRule
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node
from graphc.ir.op import Op

NativeRule = Callable[[Node, Places], NativeCalls]

_RULES: Registry[NativeRule] = Registry("native kernels")
_STRIDE_RULES: Registry[StrideRule] = Registry("native strides")


def native_rule(*ops: Key) -> Callable[[NativeRule], NativeRule]:
    """Register the decorated function as the rule of these ops."""

    def register(rule: NativeRule) -> NativeRule:
        _RULES.register(ops, rule)
        return rule

    return register


def native_strides_of(*ops: Key) -> Callable[[StrideRule], StrideRule]:
    """Register the decorated function as what says which strides these ops' native kernels take.

    Ops need none whose native kernels take what their generated GPU kernels take.
    """

    def register(rule: StrideRule) -> StrideRule:
        _STRIDE_RULES.register(ops, rule)
        return rule

    return register


def native_rule_of(op: Op) -> NativeRule | None:
    """The rule of an op: its own, else that of the nearest class with one; None without any."""
    return _RULES.rule_of(op)


def native_strides_rule_of(op: Op) -> StrideRule | None:
    """What says which strides an op's native kernels take; None where it has no rule of its own."""
    return _STRIDE_RULES.rule_of(op)
