"""The library is found, its refusals are errors, and a machine without it runs NumPy."""

import pytest
from runtime.cpu.onednn.calls import needs_library

import graphc as g
from graphc.runtime.cpu.onednn import library, nodes
from graphc.runtime.cpu.onednn.library import OnednnError, load_onednn


@pytest.mark.parametrize(("name", "value"), [("WHEEL", "no-such-wheel"), ("FILE", "no-such.so")])
def test_without_the_wheel_every_node_is_left_to_numpy(monkeypatch, name, value):
    monkeypatch.setattr(library, name, value)
    monkeypatch.setattr(nodes, "load_onednn", load_onednn.__wrapped__)
    node = g.matmul(g.input("a", (2, 3)), g.input("b", (3, 4))).producer
    assert nodes.executions(node, {}, 0, 0, 2) is None


@needs_library
def test_another_version_is_not_taken(monkeypatch):
    monkeypatch.setattr(library, "VERSION", (3, 3))
    assert load_onednn.__wrapped__() is None


@needs_library
def test_a_refusal_says_which_call_and_why():
    with pytest.raises(OnednnError, match="dnnl_engine_create failed: invalid arguments"):
        load_onednn().made("engine", 1, 99)


@needs_library
def test_threads_are_set_for_a_while():
    loaded = load_onednn()
    before = loaded.functions.omp_get_max_threads()
    with loaded.threads(before + 3):
        assert loaded.functions.omp_get_max_threads() == before + 3
    assert loaded.functions.omp_get_max_threads() == before
