"""Ops from outside the package: their rules enter the registry where the ops are written."""

import contextlib
from unittest import mock

import numpy as np
import pytest
from codegen.on_cpu import Library, aligned, generated, kernels_in

import graphc as g
from graphc.codegen import rules
from graphc.codegen.lowering import is_generated
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of, strides_of
from graphc.codegen.text.access import parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import Operand, index_type, offset, operand
from graphc.errors import OptionError
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY, Op
from graphc.ir.types import float32
from graphc.ops.elementwise import Elementwise
from graphc.ops.norm import Norm


@pytest.fixture(autouse=True)
def clean_registries():
    registries = rules._RULES.rules, rules._STRIDE_RULES.rules, REGISTRY
    with contextlib.ExitStack() as stack:
        for registry in registries:
            stack.enter_context(mock.patch.dict(registry))
        yield


def made(**members):
    """An op class that turns a vector round."""
    body = {
        "name": "turned",
        "inputs": ("x",),
        "infer": lambda self, attributes, x: x,
        "kernel": lambda self, record, node, x, *, y: record(np.copyto, y, x[::-1]),
        "gradient": lambda self, node, dy: dy,
    }
    return type("Turned", (Op,), body | members)


def turned(node, places):
    """One thread an element."""
    (x,), y = node.inputs, node.output
    source, target = (operand(n, v, places[v], v.shape) for n, v in (("x", x), ("y", y)))
    last, index = y.type.elements - 1, index_type(y.shape, [source, target])
    body = [f"narrow(widen(x[{last}u - item]), y[item]);"]
    kernel = grid_kernel("turned", last + 1, index, parameters([source], [target]), body)
    return NodeCalls((over_grid(kernel, (x, y), last + 1),))


def run(node, given):
    """A node's output, by its generated kernels."""
    (x,), y = node.inputs, node.output
    arrays = {x: aligned(given), y: aligned(np.full_like(given, 77))}
    found = generated(node, arrays)
    Library(kernels_in([found])).run(found, arrays)
    return arrays[y]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_rule_of_an_op_from_outside(dtype):
    op = made()
    assert not is_generated(REGISTRY["turned"])
    assert kernels_of("turned")(turned) is turned
    assert is_generated(REGISTRY["turned"])
    given = np.arange(1031, dtype=dtype)
    y = apply(op, g.input("x", given.shape, dtype))
    assert np.array_equal(run(y, given), given[::-1])


def test_an_expression_needs_no_rule():
    body = {"name": "cubed", "inputs": ("x",), "expression": "x * x * x",
            "gradient": lambda self, node, dy, x: dy * x * x * 3.0}  # fmt: skip
    op = type("Cubed", (Elementwise,), body)
    given = np.linspace(-2, 2, 97, dtype=np.float32)
    node = apply(op, g.input("x", given.shape, "float32"))
    assert np.array_equal(run(node, given), given * given * given)


def test_a_class_serves_the_ops_derived_from_it():
    base = made(name="first")
    kernels_of(base)(turned)
    derived = type("Second", (base,), {"name": "second"})
    assert rules.rule_of(derived()) is rules.rule_of(base())
    assert rules.rule_of(made(name="third")()) is None


def test_an_own_rule_goes_before_that_of_a_class():
    own = rules.rule_of(REGISTRY["layer_norm"])
    kernels_of(Norm)(turned)
    assert rules.rule_of(REGISTRY["layer_norm"]) is own


def test_a_second_rule_is_refused():
    with pytest.raises(OptionError, match="softmax already has a rule for its kernels"):
        kernels_of("softmax")(turned)


def test_a_second_stride_rule_is_refused():
    op = made()
    strides_of(op)(takes_all)
    with pytest.raises(OptionError, match="Turned already has a rule for its strides"):
        strides_of(op)(takes_all)


def takes_all(node, name, type, strides):
    """Whatever the strides."""
    return True


def test_a_stride_below_zero_counts_for_the_index_and_makes_offsets_signed():
    far = Operand("x", float32, (-(2**31),))
    assert index_type((3,), [far]) == "unsigned long long"
    assert index_type((3,), [far.on((-2,))]) == "unsigned"
    assert offset(("i", "j"), (-3, 1)) == "i * -3ll + j"
