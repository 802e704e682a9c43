"""Generated kernels and products on the GPU with the bits that the CPU's C++ gives, where no
function of a mathematical library is in them."""

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.networks import branches
from runtime.emulated_gpu.twins import bits, trained

import graphc as g
from graphc import Program
from graphc.runtime.gpu.backend import GpuBackend


def test_dropout_draws_the_masks_of_the_cpu():
    x = g.input("x", (64, 1000))
    y = g.dropout(x, 0.3)
    feeds = {"x": np.ones((64, 1000), np.float32)}
    runs = [
        g.compile(outputs=[y], training=True, device=device, seed=9).step(feeds)["output0"]
        for device in ("cpu", "cuda")
    ]
    np.testing.assert_array_equal(*runs)


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_streams_change_no_bit(streams):
    expected = bits(trained(branches("float32"), "cuda"))
    assert bits(trained(branches("float32"), "cuda", streams=streams)) == expected


def test_kernels_have_the_bits_of_their_cpp():
    """Sums, products and comparisons round alike on both."""
    x = g.input("x", (37, 1000))
    outputs = [g.relu(x) * x + 0.5, g.sum(x, 0), g.sum(x, 1), g.mean(x), g.max(x, 1)]
    feeds = {"x": np.random.default_rng(1).standard_normal((37, 1000)).astype(np.float32)}
    plan = g.plan(outputs=outputs, device="cuda")
    emulated = Program(plan, backend=GpuBackend(plan, EmulatedDevice()))
    expected, found = emulated.step(feeds), g.bind(plan).step(feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
