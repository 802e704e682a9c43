"""Functions of elements against PyTorch in float64: values and gradients, kinks included.

Where PyTorch has a constant in float32, its formula is written out. So are clips: only since
version 2.14, `torch.clamp` has the gradient 0 at a bound."""

import numpy as np
import pytest

import graphc as g

pytestmark = pytest.mark.peers
torch = pytest.importorskip("torch", reason="torch is not installed")
F = torch.nn.functional

POINTS = np.array([-8.0, -3.0, -2.5, -1.0, -0.7, -1e-9, 0.0, 1e-9, 0.3, 0.5, 1.0, 2.5, 3.0, 8.0])
INSIDE = POINTS[np.abs(POINTS) < 1]


def clamp(x, low, high=np.inf):
    return torch.where((low < x) & (x < high), x, x.detach().clamp(low, high))


FUNCTIONS = {
    "sin": (g.sin, torch.sin, POINTS),
    "cos": (g.cos, torch.cos, POINTS),
    "tan": (g.tan, torch.tan, POINTS),
    "asin": (g.asin, torch.asin, INSIDE),
    "acos": (g.acos, torch.acos, INSIDE),
    "atan": (g.atan, torch.atan, POINTS),
    "sinh": (g.sinh, torch.sinh, POINTS),
    "cosh": (g.cosh, torch.cosh, POINTS),
    "asinh": (g.asinh, torch.asinh, POINTS),
    "acosh": (g.acosh, torch.acosh, POINTS[POINTS > 1]),
    "atanh": (g.atanh, torch.atanh, INSIDE),
    "erf": (g.erf, torch.erf, POINTS),
    "abs": (g.abs, torch.abs, POINTS),
    "sign": (g.sign, torch.sign, POINTS),
    "round": (g.round, torch.round, POINTS),
    "reciprocal": (g.reciprocal, torch.reciprocal, POINTS[POINTS != 0]),
    "clip": (lambda x: g.clip(x, -1, 2.5), lambda x: clamp(x, -1, 2.5), POINTS),
    "clip from below": (lambda x: g.clip(x, 0.3), lambda x: clamp(x, 0.3), POINTS),
    "crossed clip": (lambda x: g.clip(x, 1, -1), lambda x: torch.clamp(x, 1, -1), POINTS),
    "softplus": (g.softplus, lambda x: F.softplus(x, threshold=1e9), POINTS),
    "softsign": (g.softsign, F.softsign, POINTS),
    "mish": (g.mish, F.mish, POINTS),
    "elu": (lambda x: g.elu(x, 0.6), lambda x: F.elu(x, 0.6), POINTS),
    "celu": (
        lambda x: g.celu(x, 0.6),
        lambda x: torch.where(x > 0, x, 0.6 * (torch.exp(x / 0.6) - 1)),
        POINTS,
    ),
    "selu": (g.selu, F.selu, POINTS),
    "hard_sigmoid": (g.hard_sigmoid, lambda x: F.relu6(x + 3) / 6, POINTS),
    "hard_swish": (g.hard_swish, F.hardswish, POINTS[np.abs(POINTS) != 3]),
    "thresholded_relu": (
        lambda x: g.thresholded_relu(x, 0.5), lambda x: F.threshold(x, 0.5, 0.0), POINTS,
    ),
    "remainder": (lambda x: x % 0.7, lambda x: torch.remainder(x, 0.7), POINTS),
    "fmod": (lambda x: g.fmod(x, 0.7), lambda x: torch.fmod(x, 0.7), POINTS),
    "power": (lambda x: g.power(x, x * 0 + 2), lambda x: torch.pow(x, x * 0 + 2), POINTS),
    "power of a base": (lambda x: 2.0**x, lambda x: 2.0**x, POINTS),
    "power of itself": (lambda x: x**x, lambda x: x**x, POINTS[POINTS >= 0]),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_gradients_are_those_of_torch(name):
    ours, theirs, points = FUNCTIONS[name]
    x = g.input("x", points.shape, "float64")
    y = ours(x)
    (dx,) = g.gradient(g.sum(y * 1.5), [x])
    program = g.compile(outputs={"y": y, "dx": dx})
    found = program.step(x=points)
    given = torch.tensor(points, requires_grad=True)
    wanted = theirs(given)
    (wanted * 1.5).sum().backward()
    np.testing.assert_allclose(found["y"], wanted.detach().numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(found["dx"], given.grad.numpy(), rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
def test_quotients_and_shifts_of_integers_are_those_of_torch(dtype):
    low = 0 if dtype == "uint8" else -9
    a, b = np.meshgrid(np.arange(low, 10), [v for v in (-4, -3, -1, 1, 2, 5) if v >= low])
    a, b = a.astype(dtype), b.astype(dtype)
    x, y = g.input("x", a.shape, dtype), g.input("y", b.shape, dtype)
    p, q = torch.tensor(a), torch.tensor(b)
    pairs = {
        "floor": (x // y, torch.div(p, q, rounding_mode="floor")),
        "trunc": (g.trunc_divide(x, y), torch.div(p, q, rounding_mode="trunc")),
        "remainder": (x % y, torch.remainder(p, q)),
        "fmod": (g.fmod(x, y), torch.fmod(p, q)),
        "left": (x << abs(y), p << q.abs()),
        "right": (x >> abs(y), p >> q.abs()),
        "xor": (x ^ y, p ^ q),
    }
    found = g.compile(outputs={name: ours for name, (ours, _) in pairs.items()}).step(x=a, y=b)
    for name, (_, wanted) in pairs.items():
        np.testing.assert_array_equal(found[name], wanted.numpy(), strict=True, err_msg=name)
