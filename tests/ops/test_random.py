"""Philox's known answers, and masks that can be drawn again."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.ops.random import philox

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
