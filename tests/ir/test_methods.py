"""Methods of values are functions of graphc; what is none says which function to call."""

import copy

import numpy as np
import pytest

import graphc as g
from graphc.errors import FeedError, GraphcError, OptionError

X = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)
x = g.input("x", X.shape)


def test_methods_give_what_numpys_do():
    methods = {
        "reshape": lambda a: a.reshape(4, -1),
        "reshape_to_a_shape": lambda a: a.reshape((2, 12)),
        "transpose": lambda a: a.transpose(),
        "transpose_to_an_order": lambda a: a.transpose(1, 0, 2),
        "transpose_to_a_tuple": lambda a: a.transpose((2, 0, 1)),
        "turned": lambda a: a.T,
        "flat": lambda a: a.flatten(),
        "sum": lambda a: a.sum(),
        "sum_of_rows": lambda a: a.sum(axis=1, keepdims=True),
        "mean": lambda a: a.mean((0, 2)),
        "largest": lambda a: a.max(-1),
        "least": lambda a: a.min((0, 1)),
        "wide": lambda a: a.astype("float64"),
    }
    outputs = {name: method(x) for name, method in methods.items()}
    found = g.compile(outputs=outputs).step(x=X)
    for name, method in methods.items():
        expected = method(X)
        assert found[name].dtype == expected.dtype, name
        assert found[name].shape == expected.shape, name
        assert found[name] == pytest.approx(expected, rel=1e-5, abs=1e-6), name
    assert x.cast("float64").type == outputs["wide"].type


def test_what_values_say_of_themselves_is_what_numpy_says():
    assert (x.shape, x.ndim, x.size, x.dtype, len(x)) == (X.shape, X.ndim, X.size, X.dtype, len(X))
    assert g.full((2,), 1.0, "bfloat16").dtype == "bfloat16"
    with pytest.raises(OptionError, match="no length"):
        len(g.sum(x))


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("softmax", "softmax"), ("view", "reshape"), ("permute", "transpose"),
        ("exp", "exp"), ("to", "cast"), ("expand", "broadcast_to"), ("matmul", "matmul"),
    ],
)  # fmt: skip
def test_a_missing_method_names_the_function(name, function):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}'; write graphc.{function}\("):
        getattr(x, name)
    assert not hasattr(x, name)


def test_a_missing_attribute_asks_for_the_nearest():
    with pytest.raises(GraphcError, match=r"test_methods.py:\d+: a value has no attribute 'shap"):
        x.shap()
    with pytest.raises(AttributeError, match=r"did you mean reshape\?"):
        x.reshap()
    with pytest.raises(AttributeError, match="no numbers before a step"):
        x.numpy()
    with pytest.raises(AttributeError):
        x._repr_png_()
    assert copy.copy(x).type == x.type


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: np.exp(x), r"numpy.exp takes arrays, .* write graphc.exp\(x"),
        (lambda: np.sum(x), r"numpy.sum takes arrays, .* write graphc.sum\(x"),
        (lambda: np.concatenate([x, x]), r"write graphc.concat\(x"),
        (lambda: np.add.reduce(x), "numpy.add takes arrays"),
        (lambda: np.asarray(x), "no numbers before a step runs"),
        (lambda: np.array([x, x]), "no numbers before a step runs"),
        (lambda: g.constant([x]), "no numbers before a step runs"),
        (lambda: X + x, "graphc.constant makes a value of it"),
        (lambda: x * X, "graphc.constant makes a value of it"),
        (lambda: X @ x, r"constant\(array\)"),
    ],
)
def test_numpys_functions_name_those_of_graphc(call, match):
    with pytest.raises(GraphcError, match=match):
        call()


def test_numpys_numbers_beside_values():
    y, bits = np.float32(2) * x - np.float64(1), np.int64(5) & g.cast(x * 4, "int32")
    outputs = {"y": y, "less": np.float32(0) < x, "bits": bits, "size": abs(x)}
    found = g.compile(outputs=outputs).step(x=X)
    assert (found["y"] == 2 * X - 1).all()
    assert (found["bits"] == (5 & (X * 4).astype(np.int32))).all()
    assert (found["size"] == abs(X)).all()
    assert (found["less"] == (X > 0)).all()
    assert [np.float32(1) == x, np.float32(1) != x] == [False, True]


def test_arrays_without_names_are_refused_by_a_step():
    program = g.compile(outputs=[x + g.input("other", X.shape)])
    for feeds in ((X, X), (X,), ({"x": X}, X)):
        with pytest.raises(FeedError, match=r"by name, program.step\(x=..., other=...\)"):
            program.step(*feeds)
    assert (program.step({"x": X}, other=X)["output0"] == 2 * X).all()
