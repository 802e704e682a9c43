"""A network on both devices."""

import numpy as np

import graphc as g
from graphc.runtime.feeds import random_feeds

SEED = 5


def trained(loss, device, steps=3, **options):
    """The last loss, and all states after some steps."""
    options = {"optimizer": g.optim.SGD(0.05), **options}
    program = g.compile(loss, device=device, seed=SEED, **options)
    for step in range(steps):
        feeds = {s.name: fed(s, a) for s, a in random_feeds(program.graph, step).items()}
        found = program.step(feeds)["loss"]
    return found, dict(program.states)


def fed(source, array):
    """The numbers of float32 in every precision."""
    return array.astype(np.float32).astype(array.dtype) if array.dtype.kind == "f" else array


def bits(run):
    """A run as bytes."""
    loss, states = run
    return loss.tobytes(), {name: array.tobytes() for name, array in states.items()}


def assert_alike(run, other, tolerance):
    """Losses and states agree within a tolerance of their largest number."""
    for name, found in {"loss": run[0], **run[1]}.items():
        expected = np.asarray({"loss": other[0], **other[1]}[name], np.float64)
        reach = tolerance * max(1.0, np.abs(expected).max(initial=0))
        np.testing.assert_allclose(
            np.asarray(found, np.float64), expected, rtol=tolerance, atol=reach, err_msg=name
        )


def assert_nan_stays(program, shape):
    """After a step with NaN in its feed ``x``, all losses are NaN."""
    feed = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert np.isfinite(program.step({"x": feed})["loss"])
    feed[2, 3] = np.nan
    for _ in range(3):
        assert np.isnan(program.step({"x": feed})["loss"])
        feed = np.ones(shape, np.float32)
