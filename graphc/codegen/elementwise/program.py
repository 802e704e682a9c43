"""Elementwise programs: expressions evaluated at each point of an index space."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphc.codegen.node_calls import Program
from graphc.codegen.text.operands import Operand
from graphc.ir.expression import Expression
from graphc.ir.types import DType


@dataclass(frozen=True)
class Each(Program):
    """An elementwise program: expressions, by output or local name, evaluated at each point of
    `shape`.

    All operands have strides over `shape`. A later expression may read an earlier output or
    local; locals are rounded to their dtype and not stored. All operands of a point are read
    before one of its outputs is written. So an output may overwrite an operand with the same
    address and strides.
    """

    op: str
    shape: tuple[int, ...]
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    expressions: Mapping[str, Expression]
    locals: Mapping[str, DType] = field(default_factory=dict)
