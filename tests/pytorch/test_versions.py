"""What graphc says where torch is missing, or is not of a version that it works with."""

import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import graphc
from graphc.errors import DependencyError, TorchError
from graphc.torch.versions import require_torch


def torch_of(version):
    found = types.ModuleType("torch")
    found.__version__ = version
    return found


def test_what_is_missing_is_told_by_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DependencyError, match=r"'\.\[torch\]'"):
        require_torch()


@pytest.mark.parametrize("version", ["2.9.0", "2.15.1+cpu", "2.14.0a0+git1"])
def test_these_versions_are_taken(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    require_torch()


@pytest.mark.parametrize("version", ["1.13.1", "2.8.1", "2.16.0", "3.0"])
def test_other_versions_are_refused_in_one_line(monkeypatch, version):
    monkeypatch.setitem(sys.modules, "torch", torch_of(version))
    with pytest.raises(DependencyError, match=r"from 2\.9 to below 2\.16") as told:
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


def test_a_private_name_that_torch_lacks_is_told_with_its_version():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    from graphc.torch.private import private

    assert private("torch._dynamo.config") is torch._dynamo.config
    assert private("torch._dynamo.gone.name", 3) == 3
    with pytest.raises(TorchError, match=r"has no torch\._dynamo\.gone\.name") as told:
        private("torch._dynamo.gone.name")
    assert torch.__version__ in str(told.value)
    assert "from 2.9 to below 2.16" in str(told.value)
    with pytest.raises(TorchError, match=r"has no torch\._dynamo\.config\.gone"):
        private("torch._dynamo.config.gone")


def test_private_names_of_dynamo_and_aot_autograd_are_in_one_module():
    folder = Path(graphc.torch.__file__).parent
    files = [path for path in folder.rglob("*.py") if path.name != "private.py"]
    names = r"torch\.(_dynamo|_functorch|_higher_order_ops|_prims|_guards|_C|_inductor)\."
    found = [
        f"{path.name}: {line}"
        for path in files
        for line in path.read_text().splitlines()
        if re.search(rf"(import |from |[ (]){names}", line) and '"' not in line
    ]
    assert found == []
