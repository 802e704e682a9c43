"""Variances, products and norms along axes, against NumPy and SciPy."""

import numpy as np
import pytest
import scipy.special
from ops.test_every_op import check_gradient, weighted_sum

import graphc as g
from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.ir.types import as_dtype

RNG = np.random.default_rng(6)
GIVEN = RNG.uniform(0.3, 2, (3, 4, 5)) * np.where(RNG.random((3, 4, 5)) < 0.5, -1, 1)
ORDERS = (1, 2, 3, 4, 0.5, -1.5, np.inf, -np.inf, 0)


def norm(x, order, axes):
    if np.isinf(order):
        return (np.max if order > 0 else np.min)(np.abs(x), axes)
    if order == 0:
        return (x != 0).sum(axes).astype(float)
    return (np.abs(x) ** order).sum(axes) ** (1 / order)


def found(outputs, given=GIVEN):
    return g.compile(outputs=outputs, poison=True, reorder=False).step(x=given)


@pytest.mark.parametrize("axes", [None, 1, (-1, 0)])
def test_values_are_numpys(axes):
    x, whole = g.input("x", GIVEN.shape, "float64"), g.input("x", GIVEN.shape, "int64")
    results = found({
        "var": g.var(x, axes), "unbiased": g.var(x, axes, 1, True), "std": g.std(x, axes, 1),
        "prod": g.prod(x, axes, True), "logsumexp": g.logsumexp(x, axes),
        **{f"norm{order}": g.norm(x, order, axes) for order in ORDERS},
    })  # fmt: skip
    wanted = {
        "var": GIVEN.var(axes), "unbiased": GIVEN.var(axes, ddof=1, keepdims=True),
        "std": GIVEN.std(axes, ddof=1), "prod": GIVEN.prod(axes, keepdims=True),
        "logsumexp": scipy.special.logsumexp(GIVEN, axes),
        **{f"norm{order}": norm(GIVEN, order, axes) for order in ORDERS},
    }  # fmt: skip
    for name, expected in wanted.items():
        assert results[name].shape == expected.shape
        np.testing.assert_allclose(results[name], expected, rtol=1e-12, err_msg=name)
    big = RNG.integers(-(2**40), 2**40, GIVEN.shape)
    np.testing.assert_array_equal(found({"y": g.prod(whole, axes)}, big)["y"], big.prod(axes))


@pytest.mark.parametrize("axes", [None, (0, 2)])
def test_gradients_of_both_orders(axes):
    """Central differences; products have one 0, two zeros and none along their axes."""
    x = g.input("x", (2, 3, 2), "float64")
    given = GIVEN[:2, :3, :2].copy()
    zeros = given.copy()
    zeros[0, 0, 0] = zeros[0, 1, 1] = zeros[1, 1, 0] = 0
    for name, y, feeds in (
        ("prod", g.prod(x, axes), zeros),
        ("var", g.var(x, axes, 1), given),
        ("std", g.std(x, axes), given),
        ("logsumexp", g.logsumexp(x, axes), given),
        ("norm", g.norm(x, 2, axes) + g.norm(x, 3, axes), given),
        ("normalize", g.normalize(x, 2, (0, 2)), given),
    ):
        first = weighted_sum([y], f"{name}_weight")
        again = weighted_sum(g.gradient(first, [x]), f"{name}_again")
        for loss in (first, again):
            check_gradient(loss, [x], {"x": feeds}, tolerance=1e-7)


def test_where_nothing_varies_the_gradient_is_0():
    x = g.input("x", (2, 4), "float64")
    outputs = [g.std(x, 1), g.norm(x, 2, 1), g.norm(x, 0.5, 1), g.norm(x, 1, 1)]
    gradients = {f"dx{i}": g.gradient(g.sum(y), [x])[0] for i, y in enumerate(outputs)}
    named = {f"y{i}": y for i, y in enumerate([*outputs, g.normalize(x)])}
    for array in found({**named, **gradients}, np.zeros((2, 4))).values():
        np.testing.assert_array_equal(array, np.zeros_like(array))


def test_logarithms_of_sums_reach_far():
    x = g.input("x", (4, 3))
    y = g.logsumexp(x, 1)
    (dx,) = g.gradient(g.sum(y), [x])
    inf = np.inf
    rows = np.array([[800, 800, -inf], [-900, -901, -inf], [-inf] * 3, [inf, 0, 1]], np.float32)
    results = found({"y": y, "dx": dx}, rows)
    np.testing.assert_allclose(
        results["y"], [800 + np.log(2), -900 + np.log1p(np.exp(-1)), -inf, inf], rtol=1e-6
    )
    np.testing.assert_allclose(results["dx"][:2], scipy.special.softmax(rows[:2], 1), rtol=1e-5)


def test_statistics_without_a_result_are_refused():
    x, b = g.input("x", (2, 3)), g.input("b", (2, 3), "bool")
    for make, error, message in (
        (lambda: g.var(x, 1, 3), OptionError, "less than the 3 elements"),
        (lambda: g.std(x, 1, ddof="1"), OptionError, "ddof"),
        (lambda: g.norm(x, "fro"), OptionError, "order"),
        (lambda: g.norm(x, np.nan), OptionError, "order"),
        (lambda: g.var(b), DTypeError, "float"),
        (lambda: g.norm(b), DTypeError, "float"),
        (lambda: g.logsumexp(b), DTypeError, "float"),
        (lambda: g.prod(b), DTypeError, "bool"),
        (lambda: g.prod(x, 2), ShapeError, "prod: axis 2"),
    ):
        with pytest.raises(error, match=message):
            make()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    "function",
    [
        g.norm,
        lambda x: g.norm(x, 3),
        lambda x: g.norm(x, 1.5),
        lambda x: g.std(g.concat([x, -x], 0)),
        lambda x: g.normalize(x),
        lambda x: g.prod(g.concat([x, 1 / x], 0) * 0.9),
        lambda x: g.logsumexp(x),
        lambda x: g.lp_pool(g.reshape(x, (1, 1, 64)), 3, 8),
    ],
)
def test_sums_of_16_bit_floats_are_in_float32(function, dtype):
    """Values are around 300, whose squares are infinite in float16."""
    given = RNG.uniform(250, 350, 64).astype(as_dtype(dtype).numpy)
    results = []
    for kind in (dtype, "float64"):
        x = g.input("x", (64,), kind)
        y = function(x)
        (dx,) = g.gradient(g.sum(y), [x])
        program = g.compile(outputs={"y": y, "dx": dx})
        results.append(program.step(x=given.astype(x.type.dtype.numpy)))
    narrow, wide = results
    reach = 5e-3 if dtype == "float16" else 4e-2
    for name, exact in wide.items():
        bound = reach * max(np.abs(exact).max(), 1e-3)
        np.testing.assert_allclose(narrow[name].astype(np.float64), exact, atol=bound)
