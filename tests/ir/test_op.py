"""What is checked when an op class is created."""

from dataclasses import dataclass

import numpy as np
import pytest

import graphc
from graphc.errors import GradientError, GraphError, OptionError
from graphc.ir.builder import apply
from graphc.ir.op import REGISTRY, Op, find_op


@pytest.fixture(autouse=True)
def clean_registry():
    before = dict(REGISTRY)
    yield
    REGISTRY.clear()
    REGISTRY.update(before)


def make(**members):
    """An op class with sane members, some replaced; None removes one."""
    body = {
        "name": "made",
        "inputs": ("x",),
        "infer": lambda self, attributes, x: x,
        "kernel": lambda self, record, node, x, *, y: None,
        "gradient": lambda self, node, dy, y: dy,
    }
    body = {key: value for key, value in (body | members).items() if value is not None}
    return type("Made", (Op,), body)


@dataclass
class Mutable:
    value: int


def test_a_sane_op_is_registered_with_its_reads():
    op = make()
    assert find_op("made").gradients["x"].reads == ("dy", "y")
    assert type(find_op("made")) is op


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"name": "relu"}, "Relu already has this name"),
        ({"name": "my op"}, "`name` must be an identifier .* got 'my op'"),
        ({"name": "my-op"}, "got 'my-op'"),
        ({"name": 3}, "got 3"),
        ({"may_overwritte": {"y": ("x",)}}, "no attribute `may_overwritte`; .* may_overwrite?"),
        ({"zzz": 3}, "no attribute `zzz`; write _zzz if it is your own"),
        ({"attributes": dict}, "frozen dataclass"),
        ({"attributes": Mutable}, "frozen dataclass"),
        ({"infer": None}, "no `infer`"),
        ({"kernel": None}, "no `kernel`"),
        ({"outputs": ("x",)}, "different names"),
        ({"views": "z"}, "'z', which is not an input"),
        ({"may_overwrite": {"y": ("z",)}}, "must map an output to an input"),
        ({"must_overwrite": {"z": "x"}}, "must map an output to an input"),
        ({"independent": {"y": ("z",)}}, "must map an output to inputs"),
        ({"instead_of_gradient": {"x": "use y"}}, "must name inputs without a gradient"),
        ({"kernel": lambda self, record, node, z, *, y: None}, r"takes \['z', 'y'\]"),
        ({"gradient": lambda self, node, dy, z: dy}, "reads 'z', which is not an input"),
        ({"gradient_z": lambda self, node, dy: dy}, "does not belong to an input"),
        ({"gradient": lambda self, dy: dy}, r"write `def gradient\(self, node, ...\)"),
        ({"gradient": lambda self, node, y: y}, r"reads \['y'\] but no gradient.*add dy"),
        ({"gradient": lambda self, node, *dy: dy}, r"parameter `\*dy`; name each"),
        ({"gradient": staticmethod(lambda node, dy: dy)}, r"write `def gradient\(self,"),
        ({"gradient": "dy"}, "`gradient` is a method, got 'dy'"),
        ({"inputs": None}, r"`inputs` is a tuple of names, such as \('x',\), got None"),
        ({"inputs": "x"}, "got 'x'"),
        ({"outputs": [1]}, r"`outputs` is a tuple of names, .* got \[1\]"),
        ({"kernel": lambda self, node, x, *, y: None}, r"write `def kernel\(self, record, node"),
        ({"inputs": ("a", "b"), "kernel": lambda self, record, node, a, b, *, y: None},
         "one `gradient_<input>` each"),
    ],
)  # fmt: skip
def test_each_check_fires(members, message):
    with pytest.raises(GraphError, match=message):
        make(**members)


def test_an_expression_may_not_read_what_it_has_overwritten():
    from graphc.ops.update import Update

    with pytest.raises(GraphError, match="which an earlier output overwrites"):
        type("Bad", (Update,), {
            "name": "bad", "inputs": ("w", "v", "g"), "outputs": ("v_new", "w_new"),
            "must_overwrite": {"v_new": "v", "w_new": "w"},
            "expressions": {"v_new": "v + g", "w_new": "w - v"},
        })  # fmt: skip


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"backward": None}, "no `backward`; write dx by dy"),
        ({"expression": None}, "no `expression`; write one"),
        ({"backward": "dy * x * y"}, "reads x and y; write it by one"),
        ({"backward": "2 * dy"}, "neither x nor y; derive from Elementwise"),
        ({"backward": "2 * y"}, "does not read dy; multiply dy"),
        ({"backward": "dy * z"}, r"reads \['z'\]; it may read \['dy', 'slope', 'x', 'y'\]"),
        ({"bend": "x"}, r"bend = 'x' reads \['x'\]; it may read \['slope', 'y'\]"),
        ({"expression": "x * z"}, r"reads \['z'\]; it may read \['slope', 'x'\]"),
        ({"expression": "exp(x"}, "y: expression 'exp.x' is not valid"),
        ({"expression": "gamma(x)"}, "'gamma.x.' is not in the grammar"),
        ({"expression": "maximum(x)"}, "has 1 operands; give maximum 2"),
        ({"expression": "exp(x, out=x)"}, "not in the grammar"),
        ({"expression": 2.0}, "an expression is text, .* got 2.0"),
        ({"name": "leaky_relu", "backward": "dy * y"}, "is taken"),
        ({"name": None}, "`name` must be an identifier .* got None"),
        ({"name": "my op"}, "got 'my op'"),
        ({"bendd": "2"}, "ops have no attribute `bendd`; did you mean bend?"),
        ({"expression": "x ^ 2"}, r"y = 'x \^ 2' uses bitwise_xor, which floats lack; use \+ - "),
        ({"expression": "slope * (x << 1)"}, "uses left_shift, which floats lack"),
        ({"expression": "~x"}, "uses invert, which floats"),
        ({"backward": "dy * (y & 1)"}, r"backward = 'dy \* \(y & 1\)' uses bitwise_and, which"),
        ({"attributes": dict}, "frozen dataclass"),
        ({"inputs": "x"}, "`inputs` is a tuple of names"),
    ],
)
def test_each_check_of_unary_functions_fires(members, message):
    from graphc.ops.activation import LeakyRelu
    from graphc.ops.unary import Unary

    body = {"name": "made", "attributes": LeakyRelu.attributes} | {
        "expression": "exp(slope * x)", "backward": "dy * slope * y", "bend": "slope + 0 * y"
    }  # fmt: skip
    before = dict(REGISTRY)
    body = {key: value for key, value in (body | members).items() if value is not None}
    with pytest.raises(GraphError, match=rf" op '[\w ]*' \(Made\): .*{message}"):
        type("Made", (Unary,), body)
    assert before == REGISTRY


def test_bitwise_operators_combine_comparisons_of_floats():
    from graphc.ops.unary import Unary

    body = {"name": "made", "expression": "where((x > 0) & ~(x > 1), x, 0)"}
    op = type("Made", (Unary,), body | {"backward": "dy * where((x > 0) & ~(x > 1), 1, 0)"})
    graphc.check_gradient(op, [np.array([-0.5, 0.5, 2.0])])


def test_an_op_without_a_name_is_refused_when_it_is_used():
    op, x = make(name=None), graphc.input("x", (2,))
    with pytest.raises(GraphError, match=r"`name` must be an identifier .* got None"):
        apply(op, x)


def test_an_update_names_the_states_that_it_replaces():
    from graphc.ops.update import Update

    with pytest.raises(GraphError, match=r"`must_overwrite` lacks \['w_new'\]"):
        type("Bad", (Update,), {
            "name": "bad", "inputs": ("w", "g"), "outputs": ("w_new",),
            "expressions": {"w_new": "w - g"},
        })  # fmt: skip


def test_a_gradient_that_reads_no_gradient_is_none():
    """Another result would be dropped without a word."""
    x = graphc.parameter("x", (3,))
    op = make(gradient=lambda self, node: x)
    with pytest.raises(GradientError, match="'x' depends on no gradient of an output; add dy"):
        graphc.gradient(graphc.sum(apply(op, x * 2.0).output), [x])


def at_once(self, record, node, x, *, y):
    y[...] = -x[::-1] if x.ndim else -x  # cannot overflow: the arena holds any numbers


def partly(self, record, node, x, *, y):
    np.negative(x, out=y)
    record(np.multiply, y, 2, y)


@pytest.mark.parametrize("over", [{}, {"y": ("x",)}], ids=["apart", "in place"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64"])
@pytest.mark.parametrize("shape", [(3, 4), (1, 3, 1), ()])
@pytest.mark.parametrize("kernel", [at_once, partly])
def test_a_kernel_that_computes_while_it_is_bound_is_refused(kernel, shape, dtype, over):
    op = make(kernel=kernel, may_overwrite=over, native_16_bit=True)
    x = graphc.input("x", shape, dtype) + 1
    with pytest.raises(GraphError, match=r"computes while.*record\(np.copyto, y, x\)"):
        graphc.compile(outputs={"y": apply(op, x).output})


def test_a_kernel_that_records_nothing_is_refused():
    op = make(kernel=lambda self, record, node, x, *, y: x[..., ::-1])
    with pytest.raises(GraphError, match=r"records no call.*record\(np.copyto, y, x\)"):
        graphc.compile(outputs={"y": apply(op, graphc.input("x", (3, 4))).output})


def test_unknown_op_points_to_the_list():
    with pytest.raises(OptionError, match="graphc ops"):
        find_op("reluu")
