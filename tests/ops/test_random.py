"""Philox's known answers, masks and noise that can be drawn again, and stopped gradients."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import GraphcError, OptionError
from graphc.ops.random import DropoutAttributes, draw_stays, philox

FULL = 0xFFFFFFFF
KNOWN = [
    # counter, key, words: the test vectors published with Random123
    ((0,) * 4, (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((FULL,) * 4, (FULL, FULL), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_known_answers(counter, key, words):
    array = np.array([counter], np.int64).T.repeat(3, axis=1)
    philox(array, key, np.empty((2, 3), np.int64))
    assert array.T.tolist() == [list(words)] * 3


def test_blocks_beyond_32_bits_have_a_word_more():
    """Fused attention numbers the weights of long sequences so far, which no tensor holds."""
    counter, product = np.empty((4, 3), np.int64), np.empty((2, 3), np.int64)
    stays, seed = np.empty(12, bool), np.array([3, 4])
    draw_stays(DropoutAttributes(0.3, 5), 2**32 - 1, seed, np.array(7), counter, product, stays)
    wanted = np.array([[FULL, 0, 1], [0, 1, 1], [5] * 3, [7] * 3])
    philox(wanted, (3, 4), product)
    np.testing.assert_array_equal(stays.reshape(3, 4), wanted.T >= 2**32 * 0.3)


X = np.ones((64, 1000), np.float32)


def masks(program, steps=1):
    return [program.step(x=X)["y"] != 0 for _ in range(steps)]


def network(rate=0.3):
    return g.dropout(g.input("x", X.shape), rate)


def test_the_part_that_stays_and_the_scale():
    y = g.compile(outputs={"y": network()}, training=True).step(x=X)["y"]
    assert (y != 0).mean() == pytest.approx(0.7, abs=5e-3)
    np.testing.assert_allclose(y[y != 0], 1 / 0.7, rtol=1e-6)


def test_seeds_streams_and_steps_give_other_masks_and_equal_networks_equal_ones():
    def program(seed):
        w = g.parameter("w", X.shape, initial=g.Initial("constant", 1.0))
        y = g.dropout(g.input("x", X.shape) * w, 0.5)
        return g.compile(g.mean(y), outputs={"y": y}, optimizer=g.optim.SGD(0.0), seed=seed)

    first = masks(program(0), 2)
    again = masks(program(0), 2)
    other = masks(program(1), 2)
    np.testing.assert_array_equal(first, again)
    for a, b in ((first[0], first[1]), (first[0], other[0])):
        assert np.corrcoef(a.ravel(), b.ravel())[0, 1] == pytest.approx(0, abs=0.02)
    x = g.input("x", X.shape)
    both = g.compile(outputs=[g.dropout(x), g.dropout(x)], training=True).step(x=X)
    assert not np.array_equal(both["output0"], both["output1"])


def test_the_gradient_draws_the_same_mask_and_nothing_is_kept():
    x = g.input("x", X.shape)
    y = g.dropout(x, 0.3)
    (dx,) = g.gradient(g.sum(y), [x])
    program = g.compile(outputs={"y": y, "dx": dx}, poison=True)
    found = program.step(x=X)
    np.testing.assert_array_equal(found["y"], found["dx"])
    saved = {value.shape for value in program.plan.saved()}
    assert X.shape not in saved


def test_recomputed_dropout_trains_the_same():
    losses = []
    for recompute in ("none", "mirror"):
        h = g.input("x", (8, 16))
        for number in range(4):
            with g.mirror(number % 2):
                h = g.dropout(g.tanh(g.linear(h, 16, name=f"layer{number}")), 0.4)
        program = g.compile(
            g.mean(h * h), optimizer=g.optim.Adam(0.1), recompute=recompute, poison=True
        )
        losses.append([program.step(x=X[:8, :16])["loss"].item() for _ in range(4)])
    assert losses[0] == losses[1]
    assert len(set(losses[0])) == 4


def test_inference_keeps_everything():
    program = g.compile(outputs={"y": network()})
    np.testing.assert_array_equal(program.step(x=X)["y"], X)
    assert [node.op.name for node in program.graph.nodes] == []


@pytest.mark.parametrize("rate", [-0.1, 1.0, "half", float("nan")])
def test_rates(rate):
    with pytest.raises(OptionError, match="rate"):
        g.dropout(g.input("x", (2,)), rate)


# --- noise ---


def sampler(dtype, seed=0, shape=(301, 701)):
    noise = {"u": g.uniform(shape, -1.0, 3.0, dtype), "n": g.normal(shape, 0.5, 2.0, dtype)}
    return g.compile(outputs=noise, seed=seed)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_noise_is_distributed_as_it_says(dtype):
    import scipy.stats  # takes half a second, which each worker would wait for

    found = sampler(dtype).step()
    for name, cdf in (
        ("u", scipy.stats.uniform(-1, 4).cdf),
        ("n", scipy.stats.norm(0.5, 2).cdf),
    ):
        drawn = found[name].ravel()
        assert drawn.dtype == dtype
        assert scipy.stats.kstest(drawn, cdf).pvalue > 0.01
        for lag in (1, 2, 4, 701):
            assert abs(np.corrcoef(drawn[:-lag], drawn[lag:])[0, 1]) < 0.01
    assert found["u"].min() >= -1
    assert found["u"].max() < 3


def test_narrow_noise_is_that_of_float32_rounded():
    wide = sampler("float32").step()
    for dtype in ("float16", "bfloat16"):
        found = sampler(dtype).step()
        for name, array in found.items():
            np.testing.assert_array_equal(array, wide[name].astype(array.dtype))


def test_uniform_numbers_may_round_to_the_upper_end_and_go_no_further():
    for low, high, dtype in ((1e6, 1e6 + 1, "float32"), (0.0, 1.0, "float16")):
        y = g.uniform((20_000,), low, high, dtype)
        drawn = g.compile(outputs={"y": y}).step()["y"]
        assert drawn.min() >= low
        assert drawn.max() == high
    fine = g.compile(outputs={"y": g.uniform((20_000,))}).step()["y"]
    assert 0.99 < fine.max() < 1


def test_noise_is_equal_for_a_seed_and_new_in_every_step_and_call():
    program, again, other = sampler("float32"), sampler("float32"), sampler("float32", seed=1)
    first, second = program.step(), program.step()
    repeated, changed = again.step(), other.step()
    for name, array in first.items():
        np.testing.assert_array_equal(array, repeated[name])
        for different in (second[name], changed[name]):
            assert abs(np.corrcoef(array.ravel(), different.ravel())[0, 1]) < 0.01
    both = g.compile(outputs=[g.normal((5,)), g.normal((5,))]).step()
    assert not np.intersect1d(both["output0"], both["output1"]).size


def test_steps_go_on_from_a_checkpoint(tmp_path):
    program, again = sampler("float32", shape=(8,)), sampler("float32", shape=(8,))
    program.step()
    program.save(tmp_path / "noise.safetensors")
    again.load(tmp_path / "noise.safetensors")
    np.testing.assert_array_equal(program.step()["n"], again.step()["n"])


def autoencoder():
    """A loss of noise with learnt deviations, through layers that are computed again."""
    x = g.input("x", (8, 16))
    with g.mirror(1):
        h = g.tanh(g.linear(x, 16, name="encoder"))
        z = h + g.exp(g.linear(h, 16, name="deviation")) * g.normal((8, 16))
    with g.mirror(1):
        y = g.tanh(g.linear(z, 16, name="decoder"))
    return g.mean((y - x) ** 2)


def test_recomputed_noise_trains_the_same():
    losses = []
    for options in ({}, {"recompute": "mirror"}, {"allocate": "none"}, {"fuse": True}):
        program = g.compile(autoencoder(), optimizer=g.optim.Adam(0.1), poison=True, **options)
        losses.append([program.step(x=X[:8, :16])["loss"].item() for _ in range(4)])
    assert losses[0] == losses[1] == losses[2] == losses[3]
    assert len(set(losses[0])) == 4


def test_micro_batches_draw_noise_of_their_own():
    w = g.parameter("w", (4,))
    noise = g.normal((4,)) + w
    program = g.compile(
        g.mean(noise), outputs={"y": noise}, optimizer=g.optim.SGD(0.0), accumulate=2
    )
    y = program.step()["y"]
    assert y.shape == (2, 4)
    assert not np.intersect1d(y[0], y[1]).size


@pytest.mark.parametrize(
    "make",
    [
        lambda: g.normal((2,), scale=-1.0),
        lambda: g.normal((2,), dtype="int32"),
        lambda: g.normal((2,), mean=1e39),
        lambda: g.normal((0,)),
        lambda: g.uniform((2,), 1.0, 0.0),
        lambda: g.uniform((2,), -3e38, 3e38),
        lambda: g.uniform((2,), float("nan")),
    ],
)
def test_noise_that_cannot_be(make):
    with pytest.raises(GraphcError):
        make()


# --- stop_gradient ---


def test_no_gradient_flows_through_what_is_stopped():
    x = g.input("x", (3,), "float64")
    y = g.sum(g.stop_gradient(g.exp(x)) * x + g.stop_gradient(x))
    (dx,) = g.gradient(y, [x])
    at = np.array([0.5, -1, 2])
    found = g.compile(outputs={"dx": dx, "y": y}).step(x=at)
    np.testing.assert_allclose(found["dx"], np.exp(at))
    np.testing.assert_allclose(found["y"], np.sum(np.exp(at) * at + at))


def test_a_straight_through_estimator_trains():
    """Rounding forward, the identity backward (Bengio et al., 2013), under every option."""
    found = []
    for options in ({}, {"recompute": "sublinear"}, {"allocate": "none"}, {"fuse": True}):
        w = g.parameter("w", (4,), initial=g.Initial("normal", 2.0))
        rounded = w + g.stop_gradient(g.round(w) - w)
        loss = g.sum((rounded - 1.0) ** 2)
        program = g.compile(loss, optimizer=g.optim.SGD(0.5), poison=True, **options)
        before = program.states["w"].copy()
        program.step()
        np.testing.assert_allclose(program.states["w"], before - (np.round(before) - 1), rtol=1e-6)
        found.append(program.states["w"].copy())
    np.testing.assert_array_equal(found, [found[0]] * 4)


def test_a_stopped_gradient_takes_no_bytes():
    x = g.input("x", (4, 8))
    plan = g.plan(outputs=[g.relu(g.stop_gradient(g.tanh(x)))])
    assert plan.arena_bytes == g.plan(outputs=[g.relu(g.tanh(x))]).arena_bytes
