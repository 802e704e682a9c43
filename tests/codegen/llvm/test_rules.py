"""Ops from outside the package get native kernels."""

import contextlib
from unittest import mock

import numpy as np
import pytest

import graphc as g
from graphc.codegen.llvm import rules
from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.families import FAMILIES
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import FLOAT, at
from graphc.codegen.llvm.pieces import over_rows, rows_of_piece
from graphc.errors import OptionError
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY, Op
from graphc.ir.types import float32
from graphc.ops.random import Noise, Normal
from graphc.ops.scan import Cumsum


@pytest.fixture(autouse=True)
def clean_registries():
    with contextlib.ExitStack() as stack:
        for registry in (rules._RULES.rules, REGISTRY):
            stack.enter_context(mock.patch.dict(registry))
        yield


def no_kernel(self, record, node, x, *, y):
    raise AssertionError("the native kernel runs in place of NumPy's")


def made():
    """An op class that turns a vector round, natively alone."""
    body = {
        "name": "turned",
        "inputs": ("x",),
        "infer": lambda self, attributes, x: x,
        "kernel": no_kernel,
        "needs_contiguous": ("x",),
    }
    return type("Turned", (Op,), body)


def write_turned(builder):
    given = NumberReader(builder)
    x, y, (last, *extents) = given.pointer(), given.pointer(), given.some(2)

    def row(number, indices):
        source = at(builder, x, builder.sub(last, number), float32)
        element = builder.load(source, align=4, typ=FLOAT)
        builder.store(element, at(builder, y, number, float32), align=4)

    over_rows(builder, given, extents, row)


def turned(node, places):
    """One element a row."""
    (x,), n = node.inputs, node.output.type.elements
    rows = rows_of_piece(1)
    kernel = kernel_of("turned", None, write_turned)
    numbers, pieces = (n - 1, n, n, rows), -(-n // rows)
    return NativeCalls((NativeCall(kernel, (x, node.output), numbers, pieces, 2 * n),))


@pytest.mark.parametrize("length", [1, 40_000])
def test_a_rule_for_an_op_of_ones_own(length):
    op = made()
    rules.native_rule("turned")(turned)
    x = g.input("x", (length,))
    program = g.compile(outputs={"y": apply(op, x).output})
    given = np.arange(length, dtype=np.float32)
    np.testing.assert_array_equal(program.step(x=given)["y"], given[::-1])


def test_a_second_rule_is_refused():
    with pytest.raises(OptionError, match="cumsum already has a rule for its native kernels"):
        rules.native_rule("cumsum")(turned)


def test_rules_of_classes_serve_what_is_derived_from_them():
    assert FAMILIES
    rules.native_rule(Noise)(turned)
    assert rules.native_rule_of(REGISTRY[Normal.name]) is turned
    own = rules.native_rule_of(REGISTRY[Cumsum.name])
    rules.native_rule(type(REGISTRY[Cumsum.name]))(turned)
    assert rules.native_rule_of(REGISTRY[Cumsum.name]) is own
