"""Primitives and kernels that programs share: whoever binds, whenever, has what fits."""

import threading

import numpy as np
import pytest

import graphc as g
from graphc.devices.device import KERNELS
from graphc.errors import OptionError
from graphc.runtime.cpu.onednn.library import load_onednn
from graphc.runtime.kernel_files import cache_folder

library = pytest.mark.skipif(load_onednn() is None, reason="oneDNN is not installed")


@library
def test_a_primitive_is_shared_only_where_the_same_maps_are_copied():
    """The copy of a small map leaves room for a scratchpad that the copy of a large one takes."""
    x, z = g.input("x", (2, 8, 32, 32)), g.input("z", (2, 8, 32, 32))
    few = g.conv2d(x, weight=g.parameter("w", (512, 8, 1, 1)))
    between = g.conv2d(z, weight=g.parameter("w3", (8, 8, 3, 3)), padding=1)
    many = g.reshape(g.conv2d(between, weight=g.parameter("w2", (512, 8, 1, 1))), (2, -1))
    loss = g.mean(few * few) + g.mean(many * many)
    feeds = {name: np.ones((2, 8, 32, 32), np.float32) for name in ("x", "z")}
    found = []
    for kernels in KERNELS:
        program = g.compile(loss, optimizer=g.optim.SGD(0.1), kernels=kernels, poison=True)
        found.append([float(program.step(feeds)["loss"]) for _ in range(2)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


@library
def test_threads_that_bind_at_one_time_hold_what_they_call():
    x = g.input("x", (2, 8, 12, 12))
    loss = g.mean(sum_of([g.conv2d(x, 16 + 4 * i, 3, name=f"c{i}") for i in range(6)]))
    plan = g.plan(loss, optimizer=g.optim.SGD(0.1))
    feeds = {"x": np.ones((2, 8, 12, 12), np.float32)}
    expected = g.bind(plan).step(feeds)["loss"]
    programs = []
    threads = [threading.Thread(target=lambda: programs.append(g.bind(plan))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [program.step(feeds)["loss"] for program in programs] == [expected] * 4


def sum_of(maps):
    total = g.mean(maps[0])
    for each in maps[1:]:
        total = total + g.mean(each)
    return total


def test_a_user_without_a_home_keeps_no_kernels(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def missing():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr("pathlib.Path.home", missing)
    assert cache_folder() is None


def test_a_cache_is_not_looked_for_where_the_process_stands(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    assert cache_folder().is_absolute()


def network():
    return g.mean(g.tanh(g.input("x", (4, 4))))


def test_threads_without_native_kernels_are_refused():
    with pytest.raises(OptionError, match="omit it with kernels='numpy'"):
        g.compile(network(), kernels="numpy", threads=2)
    with pytest.raises(OptionError, match="threads must be an integer"):
        g.Program(g.plan(network()), threads=0)


def test_numpys_kernels_on_a_gpu_are_refused():
    with pytest.raises(OptionError, match="NumPy kernels run only on the CPU"):
        g.plan(network(), device="a100", kernels="numpy")


def test_costs_of_other_kernels_are_refused():
    costs = g.profile(g.plan(network(), kernels="numpy"), repeat=1)
    assert g.plan(network(), kernels="numpy", costs=costs)
    with pytest.raises(
        OptionError, match="costs were measured for numpy kernels, but the plan uses native"
    ):
        g.plan(network(), costs=costs)
