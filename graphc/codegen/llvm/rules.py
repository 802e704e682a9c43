"""Rules that map ops without programs to native kernels.

A rule takes a node and the places of its values, and returns the node's calls. It is registered in
the file in which it is written, like the rules of generated GPU kernels.
"""

from __future__ import annotations

from collections.abc import Callable

from graphc.codegen.llvm.kernel import NativeCalls
from graphc.codegen.rules import Key, Registry
from graphc.codegen.text.operands import Places
from graphc.ir.graph import Node
from graphc.ir.op import Op

NativeRule = Callable[[Node, Places], NativeCalls]

_RULES: Registry[NativeRule] = Registry("native kernels")


def native_rule(*ops: Key) -> Callable[[NativeRule], NativeRule]:
    """Register the decorated function as the native rule of these ops."""

    def register(rule: NativeRule) -> NativeRule:
        _RULES.register(ops, rule)
        return rule

    return register


def native_rule_of(op: Op) -> NativeRule | None:
    """Return the native rule of an op: its own, else the rule of its nearest class that has one,
    else None."""
    return _RULES.rule_of(op)
