"""Methods of values are functions of graphc; what is none says which function to call."""

import copy
import functools

import numpy as np
import pytest

import graphc as g
from graphc.errors import FeedError, GraphcError, OptionError, ShapeError

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


def test_attributes_of_values_equal_those_of_numpy():
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
    with pytest.raises(AttributeError, match="no data before a step"):
        x.numpy()
    with pytest.raises(AttributeError):
        x._repr_png_()
    assert copy.copy(x).type == x.type


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: np.exp(x), r"numpy.exp needs arrays, .* write graphc.exp\(x"),
        (lambda: np.sum(x), r"numpy.sum needs arrays, .* write graphc.sum\(x"),
        (lambda: np.concatenate([x, x]), r"write graphc.concat\(x"),
        (lambda: np.add.reduce(x), "numpy.add needs arrays"),
        (lambda: np.asarray(x), "no data before a step runs"),
        (lambda: np.array([x, x]), "no data before a step runs"),
        (lambda: g.constant([x]), "no data before a step runs"),
        (lambda: g.mul(x, X), "graphc.constant converts it to a value"),
        (lambda: np.add(X, x, out=X), "numpy.add needs arrays"),
        (lambda: x * X.astype("float64"), r"mul\(f32\[3,4,2\], f64\[3,4,2\]\)"),
        (lambda: x + np.array(["a"]), "array of numbers|numbers"),
    ],
)
def test_errors_of_numpy_functions_name_graphc_equivalents(call, match):
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


def test_arrays_beside_values_are_constants():
    table = np.arange(2, dtype=np.float32).reshape(2, 1) + 1
    outputs = {
        "sum": X + x, "sum of two": x + X, "difference": X - x, "negative": x - X,
        "product": X * x, "scaled": x * X, "ratio": x / (X + 5), "inverse": (X + 5) / (x + 5),
        "matrix": x @ table, "rows": X.swapaxes(1, 2) @ x, "less": x < np.zeros_like(X),
        "number": np.array(2.0) * x - np.array(1),
    }  # fmt: skip
    assert (x * X).node.inputs[1] is g.constant(X)
    found = g.compile(outputs={k.replace(" ", "_"): y for k, y in outputs.items()}).step(x=X)
    expected = [
        2 * X, 2 * X, 0 * X, 0 * X, X * X, X * X, X / (X + 5), np.ones_like(X), X @ table,
        X.swapaxes(1, 2) @ X, X < 0, 2 * X - 1,
    ]  # fmt: skip
    for name, want in zip(found, expected, strict=True):
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-6, err_msg=name)


def test_arrays_without_names_are_refused_by_a_step():
    program = g.compile(outputs=[x + g.input("other", X.shape)])
    for feeds in ((X, X), (X,), ({"x": X}, X)):
        with pytest.raises(FeedError, match=r"by name, as in program.step\(x=..., other=...\)"):
            program.step(*feeds)
    assert (program.step({"x": X}, other=X)["output0"] == 2 * X).all()


def test_axes_have_one_name_in_functions_and_methods():
    for name in ("sum", "mean", "max", "min"):
        function, method = getattr(g, name), getattr(x, name)
        calls = (
            function(x, axis=1), function(x, axes=1), method(axis=1), method(axes=1), method(1)
        )  # fmt: skip
        assert {(y.node.op.name, y.node.attributes) for y in calls} == {
            (name, function(x, 1).node.attributes)
        }
    assert g.std(x, axis=(0, 2)).shape == g.logsumexp(x, axis=(0, 2)).shape == (4,)
    for call in (lambda: g.sum(x, dim=1), lambda: x.sum(dim=1)):
        with pytest.raises(OptionError, match=r"sum has no option 'dim'; its options are .*ax"):
            call()
    with pytest.raises(OptionError, match="give axes or axis, not both"):
        g.sum(x, axes=1, axis=1)
    for called in (functools.partial(g.sum, x), x.sum):
        for name in ("axis", "axes"):
            with pytest.raises(OptionError, match=f"sum: {name} is given twice, as 1 and 0; give"):
                called(1, **{name: 0})


@pytest.mark.parametrize(
    "call", [g.softmax, g.log_softmax, g.argmax, g.argmin, g.sort, g.cumsum, g.concat]
)
def test_functions_of_one_axis_name_it(call):
    for name, told in (("axes", "did you mean axis"), ("dim", "its options are .*axis")):
        with pytest.raises(OptionError, match=f"{call.__name__} has no option '{name}'; {told}"):
            call(x, **{name: 1})
    with pytest.raises(ShapeError, match="an axis must be an integer, got True"):
        call([x] if call is g.concat else x, axis=True)


def test_a_bool_is_not_an_axis():
    labels = g.input("labels", (2, 4), "int32")
    for call in (lambda: g.softmax_cross_entropy(x, labels, axis=True), lambda: x.sum(True)):
        with pytest.raises(ShapeError, match="an axis must be an integer, got True"):
            call()


def test_pythons_functions_of_numbers():
    i = g.input("i", (3,), "int32")
    outputs = dict(zip("abcd", (*divmod(i, 2), *divmod(7, i)), strict=True)) | {"r": round(x)}
    found = g.compile(outputs=outputs).step(x=X, i=np.array([3, -3, 4], np.int32))
    assert [found[name].tolist() for name in "abcd"] == [
        [1, -2, 2], [1, 1, 0], [2, -3, 1], [1, -2, 3]
    ]  # fmt: skip
    np.testing.assert_array_equal(found["r"], np.round(X))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: float(g.sum(x)), "no data before a step"),
        (lambda: int(g.sum(x)), "no data before a step"),
        (lambda: pow(x, 2, 3), r"no modulus; write graphc.remainder\(x"),
        (lambda: round(x, 2), "only integers"),
        (lambda: x + "a", "operand: expected a number, got 'a'"),
        (lambda: "a" * x, "operand: expected a number, got 'a'"),
    ],
)
def test_numbers_that_values_are_not(call, match):
    with pytest.raises(OptionError, match=match):
        call()
