"""What is checked when an op class is created."""

from dataclasses import dataclass

import pytest

from graphc.errors import GraphError, OptionError
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
        ({"inputs": ("a", "b"), "kernel": lambda self, record, node, a, b, *, y: None},
         "one `gradient_<input>` each"),
    ],
)  # fmt: skip
def test_each_check_fires(members, message):
    with pytest.raises(GraphError, match=message):
        make(**members)


def test_an_expression_may_not_read_what_it_has_overwritten():
    from graphc.ops.update import Update

    with pytest.raises(GraphError, match="after it is overwritten"):
        type("Bad", (Update,), {
            "name": "bad", "inputs": ("w", "v", "g"), "outputs": ("v_new", "w_new"),
            "must_overwrite": {"v_new": "v", "w_new": "w"},
            "expressions": {"v_new": "v + g", "w_new": "w - v"},
        })  # fmt: skip


def test_unknown_op_points_to_the_list():
    with pytest.raises(OptionError, match="graphc ops"):
        find_op("reluu")
