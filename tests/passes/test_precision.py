"""Mixed precision against its rules, worked out value by value, and against numbers by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from properties.oracle import run_unplanned

import graphc as g
from graphc import Initial
from graphc.ir.builder import trace
from graphc.ir.types import as_dtype
from graphc.ops.choice import Cast
from graphc.ops.float8 import casts_a_parameter
from graphc.passes.precision import to_mixed, widen_products

SIDE = 4
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}
PRODUCTS = {"matmul": g.matmul}
WIDE = {"exp": g.exp, "square": lambda x: g.power(x, 2.0)}
FOLLOWING = {"add": g.add, "mul": g.mul, "relu": g.relu, "maximum": g.maximum}
VIEWS = {"transpose": g.transpose}
OPS = {**PRODUCTS, **WIDE, **FOLLOWING, **VIEWS}
BINARY = ("matmul", "add", "mul", "maximum")


@st.composite
def programs(draw):
    """(op, operands) by the numbers of values; value 0 is fed, 1 is a parameter, 2 is a number."""
    steps = []
    for index in range(3, 3 + draw(st.integers(1, 8))):
        op = draw(st.sampled_from(sorted(OPS)))
        operand = st.integers(0, index - 1)
        steps.append((op, [draw(operand) for _ in range(2 if op in BINARY else 1)]))
    return steps


def built(steps):
    shape = (SIDE, SIDE)
    values = [
        g.input("x", shape),
        g.parameter("w", shape, initial=Initial("normal", 0.5)),
        g.full(shape, 0.25),
    ]
    for op, operands in steps:
        values.append(OPS[op](*(values[i] for i in operands)))
    return values


def kinds_by_the_rules(steps):
    """What each value is computed in: "half", "float32", or "either" where nothing but parameters
    and numbers of the graph went into it."""
    kinds = ["float32", "either", "either"]
    for op, operands in steps:
        given = [kinds[i] for i in operands]
        if op in PRODUCTS:
            kinds.append("half")
        elif op in VIEWS:
            kinds.append(given[0])
        elif set(given) == {"either"}:
            kinds.append("either")
        elif op in WIDE or "float32" in given:
            kinds.append("float32")
        else:
            kinds.append("half")
    return kinds


def numbers_by_hand(steps, kinds, x, w, half):
    """Every value in NumPy, rounded to 16 bits where a rule says so, and computed in float32."""
    values = [x, w, np.full_like(x, 0.25)]
    functions = {
        "matmul": np.matmul, "add": np.add, "mul": np.multiply, "maximum": np.maximum,
        "exp": np.exp, "relu": lambda a: np.maximum(a, 0), "transpose": np.transpose,
        "square": lambda a: a**2,
    }  # fmt: skip
    for (op, operands), kind in zip(steps, kinds[3:], strict=True):
        given = [values[i] for i in operands]
        if kind == "half":
            given = [a.astype(half).astype(np.float32) for a in given]
        found = functions[op](*given)
        values.append(found.astype(half).astype(np.float32) if kind == "half" else found)
    return values


@pytest.mark.parametrize("precision", DTYPES)
@given(programs())
def test_every_value_has_the_precision_that_the_rules_say(precision, steps):
    """All values are shown, so that what computes each of them stands before its cast back."""
    values = built(steps)
    graph = trace({f"v{i}": value for i, value in enumerate(values)})
    mixed = to_mixed(graph, precision)
    kinds = kinds_by_the_rules(steps)
    half = as_dtype(DTYPES[precision])
    for i, value in enumerate(values):
        shown = mixed.outputs[f"v{i}"]
        assert shown.type == value.type
        is_cast = shown.node is not None and isinstance(shown.node.op, Cast)
        dtype = shown.node.inputs[0].type.dtype if is_cast else shown.type.dtype
        assert (dtype == half) == (kinds[i] == "half"), (i, steps)
    drawn = np.random.default_rng(0)
    x, w = (drawn.uniform(-1, 1, (SIDE, SIDE)).astype(np.float32) for _ in range(2))
    sources = {s: x if s.name == "x" else w for s in mixed.sources}
    found = run_unplanned(mixed, sources)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = numbers_by_hand(steps, kinds, x, w, half.numpy)
    step = 2.0**-10 if precision == "fp16" else 2.0**-7
    for i, wanted in enumerate(expected):
        have = found[mixed.outputs[f"v{i}"]]
        scale = np.abs(np.nan_to_num(wanted)).max(initial=1)
        np.testing.assert_allclose(have, wanted, rtol=step, atol=step * scale, err_msg=str(steps))


def operand_dtypes(graph, op):
    """The dtypes of the operands of the nodes of an op, and of their outputs."""
    return [
        ([v.type.dtype.name for v in n.inputs], [v.type.dtype.name for v in n.outputs])
        for n in graph.nodes
        if n.op.name == op
    ]


def test_a_products_rounding_shows_in_one_number():
    """2048 + 1 is no float16, and 1 + 1/2048 is none either: both are seen after a product."""
    x = g.input("x", (1, 2))
    ones = g.parameter("w", (2, 1), initial=Initial("constant", 1.0))
    for precision, wanted in (("fp32", 2049), ("fp16", 2048), ("bf16", 2048)):
        program = g.compile(outputs={"y": g.matmul(x, ones)}, precision=precision)
        found = program.step(x=np.array([[2048, 1]], np.float32))["y"]
        assert found.dtype == np.float32
        assert found == wanted


def test_fp32_and_tf32_leave_the_graph_as_it_is():
    graph = trace({"y": g.matmul(g.input("x", (2, 2)), g.parameter("w", (2, 2)))})
    assert to_mixed(graph, "fp32") is graph
    assert to_mixed(graph, "tf32") is graph


def test_a_norm_keeps_its_scale_in_float32():
    x = g.matmul(g.input("x", (2, 4)), g.parameter("w", (4, 4)))
    mixed = to_mixed(trace({"y": g.rms_norm(x)}), "fp16")
    (found,) = operand_dtypes(mixed, "rms_norm")
    assert found == (["float16", "float32"], ["float16", "float32"])


def test_rows_of_a_table_are_narrowed_and_the_table_is_not():
    rows = g.embedding(g.input("i", (3,), "int32"), 5, 4)
    mixed = to_mixed(trace({"y": g.relu(rows)}), "bf16")
    assert operand_dtypes(mixed, "gather") == [(["float32", "int32"], ["float32"])]
    assert operand_dtypes(mixed, "relu") == [(["bfloat16"], ["bfloat16"])]


def test_a_cast_of_the_users_is_kept():
    x = g.matmul(g.input("x", (2, 2)), g.parameter("w", (2, 2)))
    mixed = to_mixed(trace({"y": g.cast(x, "float64"), "i": g.cast(x, "int32")}), "fp16")
    assert {name: v.type.dtype.name for name, v in mixed.outputs.items()} == {
        "y": "float64",
        "i": "int32",
    }


def product(a="x", b="z", size=2):
    """A product of two fed arrays in float16."""
    return g.matmul(g.input(a, (1, size), "float16"), g.input(b, (size, 1), "float16"))


def test_a_product_that_is_only_converted_is_not_rounded():
    """2048 + 1 again: a wide product gives it, one that is rounded first does not."""
    y = product()
    graph = trace({"y": g.cast(y, "float32")})
    widened = widen_products(graph)
    assert [n.op.name for n in widened.nodes] == ["matmul"]
    assert widened.nodes[0].attributes.wide
    given = {"x": np.array([[2048, 1]], np.float16), "z": np.ones((2, 1), np.float16)}
    for each, wanted in ((graph, 2048), (widened, 2049)):
        sources = {s: given[s.name] for s in each.inputs}
        found = run_unplanned(each, sources)[each.outputs["y"]]
        assert found.dtype == np.float32
        assert found == wanted


def test_a_product_that_is_read_elsewhere_stays():
    read_twice, shown = product("a", "b"), product("c", "d")
    to_16 = g.cast(product("e", "f"), "float64")
    outputs = {
        "one": g.cast(read_twice, "float32"), "other": g.relu(read_twice),
        "wide": g.cast(shown, "float32"), "shown": shown, "double": to_16,
    }  # fmt: skip
    graph = trace(outputs)
    assert widen_products(graph) is graph


def test_of_several_products_those_that_are_converted_are_widened():
    kept, widened = product("a", "b"), product("c", "d")
    outputs = {"kept": g.relu(kept), "wide": g.cast(widened, "float32")}
    graph = widen_products(trace(outputs))
    products = [n for n in graph.nodes if n.op.name == "matmul"]
    assert sorted(n.output.type.dtype.name for n in products) == ["float16", "float32"]


def test_casts_of_parameters_are_those_of_parameters_and_their_parts():
    w, x = g.parameter("w", (4, 2)), g.input("x", (4, 2))
    answers = {
        g.cast(w, "float16"): True,
        g.cast(w, "bfloat16"): True,
        g.cast(w[1:3], "float16"): True,
        g.cast(g.reshape(g.transpose(w), (8,)), "float16"): True,
        g.cast(w, "float64"): False,
        g.cast(w, "int32"): False,
        g.cast(x, "float16"): False,
        g.cast(x[1:3], "float16"): False,
        g.cast(g.relu(w), "float16"): False,
        g.relu(w): False,
    }
    assert {value: casts_a_parameter(value.node) for value in answers} == answers


def test_exponentials_of_user_casts_are_computed_in_float32():
    """A parameter in 16 bits on purpose: its exponential is computed in float32 all the same."""
    w = g.parameter("w", (2,))
    mixed = to_mixed(trace({"y": g.exp(g.cast(w, "float16")), "z": g.exp(w)}), "fp16")
    assert operand_dtypes(mixed, "exp") == [(["float32"], ["float32"])] * 2
    assert [n.op.name for n in mixed.nodes].count("cast") == 3
