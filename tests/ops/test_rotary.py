"""Rotary positions and flatten, against NumPy's complex numbers and torch."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, OptionError, ShapeError

RNG = np.random.default_rng(3)
FORMS = [{}, {"interleaved": True}, {"first_position": 7}, {"base": 50.0, "interleaved": True}]


def turns(positions, width, base=10_000.0, first_position=0, interleaved=False):
    """The factor of each pair, as complex numbers (positions, width / 2)."""
    places = np.arange(first_position, first_position + positions)
    return np.exp(1j * places[:, None] / base ** (np.arange(0, width, 2) / width))


def turned(x, factors, interleaved):
    half = x.shape[-1] // 2
    pairs = (slice(None, None, 2), slice(1, None, 2)) if interleaved else (
        slice(half), slice(half, None))  # fmt: skip
    product = (x[..., pairs[0]] + 1j * x[..., pairs[1]]) * factors
    y = np.empty_like(x)
    y[..., pairs[0]], y[..., pairs[1]] = product.real, product.imag
    return y


def run(form, x, weight):
    """The rotated x, and the gradient of its sum weighted."""
    values = g.input("x", x.shape, x.dtype), g.input("weight", weight.shape, weight.dtype)
    y = g.rope(values[0], **form)
    assert y.type == values[0].type
    (dx,) = g.gradient(g.sum(y * values[1]), [values[0]])
    found = g.compile(outputs={"y": y, "dx": dx}, poison=True).step(x=x, weight=weight)
    return found["y"], found["dx"]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5, 6), (4, 2), (3, 1, 1, 8)])
def test_rope_multiplies_pairs_by_complex_numbers(form, shape):
    x, weight = RNG.standard_normal((2, *shape))
    factors = turns(*shape[-2:], **form)
    y, dx = run(form, x, weight)
    is_interleaved = form.get("interleaved", False)
    np.testing.assert_allclose(y, turned(x, factors, is_interleaved), rtol=1e-12, atol=1e-12)
    wanted = turned(weight, factors.conj(), is_interleaved)
    np.testing.assert_allclose(dx, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_angles_are_exact_before_they_are_rounded_to_the_type(dtype):
    x = g.full((1, 4, 2), 1.0, dtype)
    y = g.cast(g.rope(x, first_position=1_000_000), "float64")
    found = g.compile(outputs={"y": y}).step()["y"]
    factors = turns(4, 2, first_position=1_000_000)
    wanted = turned(np.ones((1, 4, 2)), factors, interleaved=False)
    np.testing.assert_allclose(found, wanted, atol={"float32": 2e-7, "bfloat16": 0.02}[dtype])


def test_scores_depend_on_distances_alone():
    q, k = RNG.standard_normal((2, 1, 1, 1, 16))
    scores = {
        f"from_{place}": g.sum(
            g.rope(g.constant(q), first_position=place + 3)
            * g.rope(g.constant(k), first_position=place)
        )
        for place in (0, 5, 1000)
    }
    found = g.compile(outputs=scores).step()
    assert found["from_5"] == pytest.approx(found["from_0"], rel=1e-12)
    assert found["from_1000"] == pytest.approx(found["from_0"], rel=1e-10)


def test_equal_calls_share_their_tables():
    q, k = g.input("q", (2, 4, 8, 16)), g.input("k", (2, 2, 8, 16))
    plan = g.plan(outputs={"q": g.rope(q), "k": g.rope(k)})
    assert plan.state_bytes == 2 * 8 * 8 * 4


@pytest.mark.peers
@pytest.mark.parametrize("is_interleaved", [False, True])
def test_rope_has_the_values_and_gradients_of_torch(is_interleaved):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x, weight = RNG.standard_normal((2, 2, 3, 5, 8))
    leaf = torch.tensor(x, requires_grad=True)
    angles = torch.arange(5)[:, None].double() * 10_000.0 ** (-torch.arange(4).double() / 4)
    cosine, sine = angles.cos(), angles.sin()
    if is_interleaved:
        a, b = leaf[..., ::2], leaf[..., 1::2]
        y = torch.stack([a * cosine - b * sine, b * cosine + a * sine], -1).flatten(-2)
    else:
        a, b = leaf.chunk(2, -1)
        turned = torch.cat([-b, a], -1)
        y = leaf * torch.cat([cosine] * 2, -1) + turned * torch.cat([sine] * 2, -1)
    (wanted,) = torch.autograd.grad((y * torch.tensor(weight)).sum(), leaf)
    found, dx = run({"interleaved": is_interleaved}, x, weight)
    np.testing.assert_allclose(found, y.numpy(force=True), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(dx, wanted.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "dtype", "options", "error", "said"),
    [
        ((4, 6), "int32", {}, DTypeError, "must be float"),
        ((6,), "float32", {}, ShapeError, "an even width"),
        ((4, 5), "float32", {}, ShapeError, "an even width"),
        ((4, 6), "float32", {"base": 0.5}, OptionError, "base must be between 1"),
        ((4, 6), "float32", {"base": np.inf}, OptionError, "base must be between 1"),
        ((4, 6), "float32", {"first_position": -1}, OptionError, "first_position must be"),
        ((4, 6), "float32", {"interleaved": 1}, OptionError, "interleaved must be True or False"),
    ],
)
def test_rope_refuses(shape, dtype, options, error, said):
    with pytest.raises(error, match=said):
        g.rope(g.input("x", shape, dtype), **options)


def test_flatten_joins_axes():
    x = g.input("x", (2, 3, 4))
    assert g.flatten(x).shape == (2, 12)
    assert g.flatten(x, 0).shape == x.flatten().shape == (24,)
    assert g.flatten(x, -2).shape == x.flatten(1).shape == (2, 12)
    assert g.flatten(x, start_axis=2) is x
    assert g.flatten(g.full((), 1.0), 0).shape == (1,)
    for axis in (3, -4, 1.0):
        with pytest.raises(ShapeError, match="flatten: "):
            g.flatten(x, axis)


def test_flatten_keeps_the_order_of_elements_and_gradients():
    array = RNG.standard_normal((2, 3, 4))
    x, weight = g.input("x", array.shape, "float64"), g.constant(np.arange(12.0))
    y = g.flatten(g.transpose(x, (0, 2, 1)))
    (dx,) = g.gradient(g.sum(y * weight), [x])
    found = g.compile(outputs={"y": y, "dx": dx}).step(x=array)
    np.testing.assert_array_equal(found["y"], array.swapaxes(1, 2).reshape(2, 12))
    wanted = np.broadcast_to(np.arange(12.0).reshape(4, 3).T, array.shape)
    np.testing.assert_array_equal(found["dx"], wanted)
