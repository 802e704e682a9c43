"""Errors of the DSL name the file and line of the user's call, and the scope that it stands in."""

import importlib.util
import itertools
import re

import pytest

import graphc as g
from graphc.cli import main
from graphc.errors import (
    DTypeError,
    GradientError,
    GraphError,
    OptionError,
    PlacedError,
    ShapeError,
)
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY, Op

numbers = itertools.count()

NETWORK = """
import graphc as g

def block(x):
    with g.scope("block"):
        with g.mirror(1), g.scope("inner"):
            return {call}

def build():
    x = g.input("x", (4, 6))
    return g.mean(block(x))
"""
LINE = 7


def module_with(call, tmp_path):
    path = tmp_path / f"network{next(numbers)}.py"
    path.write_text(NETWORK.format(call=call))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return path, module


CALLS = [
    ("g.matmul(x, x)", ShapeError, "matmul(f32[4,6], f32[4,6]): "),
    ("x @ x", ShapeError, "matmul(f32[4,6], f32[4,6]): "),
    ("x + g.input('y', (5,))", ShapeError, "add(f32[4,6], f32[5]): "),
    ("g.add(x, g.cast(x, 'float64'))", DTypeError, "add(f32[4,6], f64[4,6]): "),
    ("g.linear(x, 0)", ShapeError, "linear: outputs must be an integer"),
    ("g.affine(x, g.transpose(x))", ShapeError, "affine: "),
    ("g.conv2d(x, 3, 3)", ShapeError, "conv2d: "),
    ("g.sum(x, 7)", ShapeError, "sum"),
    ("g.relu(3)", OptionError, "relu: an operand must be a graphc value"),
    ("g.parameter('w w', (3,))", OptionError, "'w w' is not a valid name"),
    ("g.scope('a b').__enter__()", OptionError, "'a b' is not a valid name"),
    ("x if x else None", OptionError, "a value has no truth"),
    ("g.reshape(x, (5, 5))", ShapeError, "reshape"),
    ("g.gradient(x, [x])", GradientError, "the loss must be a float scalar"),
]


@pytest.mark.parametrize(("call", "kind", "rule"), CALLS, ids=[call for call, *_ in CALLS])
def test_an_error_of_an_op_names_the_users_line_and_the_scope(call, kind, rule, tmp_path):
    path, module = module_with(call, tmp_path)
    with pytest.raises(kind) as caught:
        module.build()
    told = str(caught.value)
    assert told.startswith(f"{path}:{LINE} in scope 'block/inner': {rule}"), told
    assert told == f"{path}:{LINE} in scope 'block/inner': {caught.value.message}"
    assert told.count("in scope") == 1


def test_the_command_line_tells_it_too(tmp_path, capsys):
    path, _ = module_with("g.matmul(x, x)", tmp_path)
    assert main(["plan", f"{path}:build"]) == 2
    assert capsys.readouterr().err.startswith(
        f"graphc: {path}:{LINE} in scope 'block/inner': matmul(f32[4,6], f32[4,6]): "
    )
    assert main(["plan", "mlp", "--budget", "many"]) == 2
    assert capsys.readouterr().err.startswith("graphc: budget")


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (
            "g.reluu(x)",
            "AttributeError: module 'graphc' has no attribute 'reluu'; did you mean relu",
        ),
        ("g.relu(x, 1, 2)", "TypeError: relu() takes 1 positional argument but 3 were given"),
        ("x + 1 +* 2", "SyntaxError: invalid syntax"),
        ("None / 3", "TypeError: unsupported operand"),
    ],
)
def test_any_other_mistake_in_a_file_is_told_with_the_users_line(call, told, tmp_path, capsys):
    """Not a line of graphc's, where it is graphc that raises."""
    path = tmp_path / "network.py"
    path.write_text(NETWORK.format(call=call))
    assert main(["plan", f"{path}:build"]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"graphc: {path}:{LINE}: {path}")
    assert f" failed: {told}" in error
    assert error.count("\n") == 1


def test_an_error_that_no_user_code_is_part_of_has_no_place():
    with pytest.raises(ShapeError) as caught:
        g.matmul(g.input("x", (4, 6)), g.input("y", (4, 6)))
    assert re.match(r"\S*test_error_places.py:\d+: matmul", str(caught.value))
    assert str(caught.value.with_traceback(None)) == caught.value.message
    assert caught.value.scope == ""


def test_an_error_about_a_node_at_compile_names_the_call_and_the_scope_of_the_node():
    """The scope is what a node remembers of where it was made."""
    x = g.parameter("x", (4, 3))
    labels = g.input("labels", (4,), "int32")
    with g.scope("classifying"):
        first = g.linear_cross_entropy(x, g.parameter("table", (5, 3)), labels, chunks=2)
    (dx,) = g.gradient(first * first, [x])
    with g.scope("elsewhere"):
        loss = g.sum(dx * g.parameter("w", (3,)))
    with pytest.raises(
        GradientError, match="has no gradient with respect to its input 'dy'"
    ) as caught:
        g.compile(loss, optimizer=g.optim.SGD())
    assert re.match(
        rf"{re.escape(__file__)}:\d+ in scope 'classifying': classifying/carried_gradient ",
        str(caught.value),
    )


def test_errors_of_custom_ops_name_the_line_that_applies_them():
    class Refuses(Op):
        name, inputs = "refuses_in_tests", ("x",)

        def infer(self, attributes, x):
            raise ShapeError("the rule")

        def kernel(self, record, node, x, y): ...

    x = g.input("x", (2,))
    with pytest.raises(ShapeError) as caught:
        apply(Refuses, x)
    del REGISTRY[Refuses.name]
    assert str(caught.value).endswith("refuses_in_tests(f32[2]): the rule")
    assert str(caught.value).count(__file__) == 1


def test_the_classes_that_describe_programs_are_placed():
    placed = {ShapeError, DTypeError, OptionError, GraphError, GradientError}
    assert all(issubclass(kind, PlacedError) for kind in placed)
