"""NumPy's kernels of attention run OpenBLAS on one thread, and restore the number of threads."""

import threading

import numpy as np
import pytest

import graphc as g
from graphc.ops.cpu import attention_tiles, blas


@pytest.fixture
def threads(monkeypatch):
    """Stand-ins for OpenBLAS's functions: a list of all numbers of threads that were set."""
    found = [3]
    monkeypatch.setattr(blas, "_functions", lambda: (lambda: found[-1], found.append))
    return found


def test_the_number_of_threads_is_restored(threads):
    def stop():
        with blas.one_blas_thread():
            assert threads[-1] == 1
            raise ValueError("stopped")

    with pytest.raises(ValueError, match="stopped"):
        stop()
    assert threads == [3, 1, 3]


def test_the_last_of_concurrent_callers_restores_it(threads):
    inside, leave = threading.Event(), threading.Event()

    def other():
        with blas.one_blas_thread():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with blas.one_blas_thread():
        thread.start()
        assert inside.wait(10)
    assert threads == [3, 1]
    leave.set()
    thread.join()
    assert threads == [3, 1, 3]


def test_attention_and_its_gradient_run_on_one_thread(threads, monkeypatch):
    met, scores = [], attention_tiles.Sight.scores

    def counted(*arguments):
        met.append(threads[-1])
        scores(*arguments)

    monkeypatch.setattr(attention_tiles.Sight, "scores", counted)
    x = g.parameter("x", (1, 1, 4, 2), initial=g.Initial("normal", 1.0))
    loss = g.mean(g.attention(x, x, x))
    g.compile(loss, optimizer=g.optim.SGD(), kernels="numpy").step()
    assert set(met) == {1}
    assert len(met) >= 2
    assert threads[-1] == 3


def test_another_blas_is_left_alone(monkeypatch):
    monkeypatch.setattr(blas, "_functions", lambda: None)
    with blas.one_blas_thread():
        np.testing.assert_array_equal(np.eye(2) @ np.eye(2), np.eye(2))


def test_the_blas_of_numpy_is_found():
    """In NumPy's wheels, which have OpenBLAS on Linux."""
    if "openblas" not in np.show_config("dicts")["Build Dependencies"]["blas"]["name"]:
        pytest.skip("NumPy has another BLAS")
    get_threads, _ = blas._functions()
    before = get_threads()
    with blas.one_blas_thread():
        assert get_threads() == 1
    assert get_threads() == before
