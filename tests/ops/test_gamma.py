"""Gamma functions and angles where rows of random numbers do not reach: poles, signs, precision."""

import numpy as np
import pytest
import scipy.special

import graphc as g

POINTS = np.array([-30.3, -2.5, -0.7, -1e-20, 1e-20, 1e-5, 0.2, 0.5, 1, 2, 7.99, 8, 40, 1e5, 1e300])
FUNCTIONS = {
    "lgamma": (g.lgamma, scipy.special.gammaln, scipy.special.psi),
    "digamma": (g.digamma, scipy.special.psi, lambda x: scipy.special.zeta(2, x)),
}


def values(function, x):
    given = g.input("x", x.shape, str(x.dtype))
    y = function(given)
    (slope,) = g.gradient(g.sum(y), [given])
    return g.compile(outputs={"y": y, "slope": slope}).step({"x": x}).values()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 2e-6)])
def test_values_and_gradients_have_small_errors(name, dtype, tolerance):
    function, reference, slope = FUNCTIONS[name]
    x = POINTS[np.abs(POINTS) < np.finfo(dtype).max].astype(dtype)
    y, found = values(function, x)
    np.testing.assert_allclose(y, reference(x.astype("f8")), rtol=tolerance, atol=tolerance)
    above = slice(4 if name == "lgamma" else 5, None)
    wanted = slope(x[above].astype("f8"))
    np.testing.assert_allclose(found[above], wanted, rtol=10 * tolerance, atol=tolerance)


def test_the_gradient_of_digamma_below_0_follows_from_its_reflection():
    x = np.array([-2.5, -0.7, 0.25])
    _, found = values(g.digamma, x)
    wanted = (np.pi / np.sin(np.pi * x)) ** 2 - scipy.special.zeta(2, 1 - x)
    np.testing.assert_allclose(found, wanted, rtol=1e-14)


def test_poles_and_what_is_no_number():
    x = np.array([0.0, -1, -30, np.inf, np.nan])
    (y, slope), (z, _) = values(g.lgamma, x), values(g.digamma, x)
    np.testing.assert_array_equal(y, [np.inf] * 4 + [np.nan])
    np.testing.assert_array_equal(slope, z)
    np.testing.assert_array_equal(z, [-np.inf] * 3 + [np.inf, np.nan])


def test_higher_gradients_of_lgamma():
    x = np.array([0.3, 1.0, 3.0, 9.0])
    first, second = values(lambda v: g.gradient(g.sum(g.lgamma(v)), [v])[0], x)
    np.testing.assert_allclose(first, scipy.special.psi(x), rtol=1e-13)
    np.testing.assert_allclose(second, scipy.special.zeta(2, x), rtol=1e-13)


def test_angles_in_all_quadrants():
    points = np.array([-np.inf, -2.0, -1e-300, -0.0, 0.0, 0.5, 1.0, 3.0])
    a, b = (part.ravel() for part in np.meshgrid(points, points))
    is_corner = np.isinf(a) & np.isinf(b)
    given = [g.input(name, a.shape, "float64") for name in "ab"]
    found = g.compile(outputs={"y": g.atan2(*given)}).step({"a": a, "b": b})["y"]
    wanted = np.arctan2(a, b)
    np.testing.assert_allclose(found[~is_corner], wanted[~is_corner], rtol=1e-15)
