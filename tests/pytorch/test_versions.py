"""What graphc says where torch is missing, or is not of a version that it works with."""

import subprocess
import sys
import types

import pytest

from graphc.errors import DependencyError
from graphc.torch.versions import require_torch


def torch_of(version):
    found = types.ModuleType("torch")
    found.__version__ = version
    return found


def test_what_is_missing_is_told_by_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DependencyError, match=r"'\.\[torch\]'"):
        require_torch()


@pytest.mark.parametrize("version", ["2.13.0", "2.15.1+cpu", "2.14.0a0+git1"])
def test_these_versions_are_taken(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    require_torch()


@pytest.mark.parametrize("version", ["1.13.1", "2.9.0", "2.16.0", "3.0"])
def test_other_versions_are_refused_in_one_line(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    with pytest.raises(DependencyError, match=r"from 2\.13 to below 2\.16") as told:
        require_torch()
    assert version in str(told.value)
    assert "\n" not in str(told.value)


def test_it_is_there_after_importing_graphc_alone():
    code = "import graphc, sys; graphc.torch.__doc__; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_file_of_the_package_has_the_name_of_a_public_function():
    """It would take the function's place as soon as it is imported."""
    from importlib.util import find_spec

    import graphc

    assert [name for name in graphc.torch.__all__ if find_spec(f"graphc.torch.{name}")] == []
