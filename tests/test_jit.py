"""Compiled loops: where machine code is kept, and what is done without numba."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import graphc
from graphc import jit

CODE = """
import numpy as np
from graphc.planner.pack.search import _settle
_settle(0, 8, np.zeros((1, 4), np.int64), 0, 1)
assert _settle.is_compiled
"""


def test_machine_code_is_kept_in_the_users_cache_alone(tmp_path):
    pytest.importorskip("numba")
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environment.pop("NUMBA_CACHE_DIR", None)
    subprocess.run([sys.executable, "-c", CODE], env=environment, check=True, capture_output=True)
    folders = list((tmp_path / "graphc").glob("loops-*"))
    assert len(folders) == 1
    assert list(folders[0].rglob("*.nbi"))
    package = Path(graphc.__file__).parent
    assert not list(package.rglob("*.nbi"))


def test_without_numba_loops_run_as_they_are_written(monkeypatch):
    monkeypatch.setitem(sys.modules, "numba", None)
    loop = jit.Loop(lambda x: 2 * x)
    assert loop.compiled is loop.written
    assert jit.suited(loop, 10**9)(3) == loop(3) == 6
    assert not loop.is_compiled


def test_a_cache_that_cannot_be_written_is_no_error(monkeypatch, tmp_path):
    (tmp_path / "graphc").write_text("a file where the folder would be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert jit.cache_folder() is None


def test_the_cache_belongs_to_the_sources_of_all_loops(tmp_path):
    """numba loads no index whose classes have been renamed, and does not notice changed callees."""
    loop, other = tmp_path / "loop.py", tmp_path / "other.py"
    loop.write_text("@compiled\ndef f(x): return x")
    other.write_text("def g(x): return x")
    first = jit._digest(tmp_path)
    other.write_text("def g(x): return x + 1")
    assert jit._digest(tmp_path) == first
    loop.write_text("@compiled\ndef f(x): return x + 1")
    second = jit._digest(tmp_path)
    loop.rename(tmp_path / "renamed.py")
    assert len({first, second, jit._digest(tmp_path)}) == 3


def test_both_forms_of_loops_that_call_loops_agree():
    @jit.compiled
    def double(x):
        return 2 * x

    namespace = {"double": double}
    exec("def quadruple(x):\n    return double(double(x))", namespace)
    quadruple = jit.Loop(namespace["quadruple"])
    assert quadruple.written(3) == 12
    assert not double.is_compiled
    assert jit.suited(quadruple, 1)(3) == 12
