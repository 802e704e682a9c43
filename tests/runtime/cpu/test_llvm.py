"""The cache of machine code of native kernels."""

import os
import subprocess
import sys

import pytest

import graphc as g
from graphc.codegen.llvm.kernel import NativeKernel
from graphc.codegen.native import native_calls
from graphc.codegen.text.operands import in_one_piece
from graphc.errors import GraphcError
from graphc.runtime.cpu import llvm
from graphc.runtime.cpu.llvm import addresses

SQUARE = "define i64 @{name}(i64 %x) {{ %y = mul i64 %x, %x ret i64 %y }}"


def kernels(*functions):
    nodes = [f(g.input("x", (8, 8))).node for f in functions]
    places = [{v: in_one_piece(v.type) for v in (*n.inputs, *n.outputs)} for n in nodes]
    calls = [native_calls(node, place) for node, place in zip(nodes, places, strict=True)]
    return [call.kernel for each in calls for call in each.calls]


@pytest.fixture
def compiled(monkeypatch):
    """The texts that were compiled, in a process that has loaded none yet."""
    texts, compile = [], llvm._compiled

    def counted(text):
        texts.append(text)
        return compile(text)

    monkeypatch.setattr(llvm, "_compiled", counted)
    monkeypatch.setattr(llvm, "_LOADED", {})
    llvm._linker.cache_clear()
    yield texts
    llvm._linker.cache_clear()


def forget():
    """As a new process begins: nothing is loaded."""
    llvm._LOADED.clear()
    llvm._linker.cache_clear()


def test_kernels_are_compiled_once_and_kept(tmp_path, compiled):
    both = kernels(g.tanh, g.exp)
    first = addresses(both, tmp_path)
    assert list(first) == [kernel.name for kernel in both]
    assert len(compiled) == len(os.listdir(tmp_path)) == 2
    assert addresses(both, tmp_path) == first
    forget()
    assert all(addresses([*both, *kernels(g.relu)], tmp_path).values())
    assert len(compiled) == len(os.listdir(tmp_path)) == 3


def test_other_processors_and_versions_are_apart(tmp_path, compiled, monkeypatch):
    one = kernels(g.tanh)
    addresses(one, tmp_path)
    forget()
    monkeypatch.setattr(llvm, "_compiler", lambda: ("another",))
    addresses(one, tmp_path)
    assert len(compiled) == len(os.listdir(tmp_path)) == 2


@pytest.mark.parametrize("content", [b"", b"short", b"\x7fELF" + bytes(100)])
def test_a_broken_file_is_compiled_again(tmp_path, compiled, content):
    one = kernels(g.tanh)
    addresses(one, tmp_path)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    file.write_bytes(content)
    forget()
    addresses(one, tmp_path)
    assert len(compiled) == 2
    assert file.read_bytes() == whole


def test_without_a_folder_nothing_is_kept(compiled):
    for _ in range(2):
        forget()
        addresses(kernels(g.tanh), None)
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path, compiled):
    (tmp_path / "file").write_text("")
    assert addresses(kernels(g.tanh), tmp_path / "file" / "folder")
    assert os.listdir(tmp_path) == ["file"]


def test_a_broken_kernel_is_refused(tmp_path, compiled):
    broken = NativeKernel("broken", "define void @broken() { ret i64 %missing }")
    with pytest.raises(GraphcError, match="does not compile"):
        addresses([broken], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_processes_share_a_folder(tmp_path):
    """All at once; each file is whole, and there is one for each kernel."""
    program = (
        "import sys, ctypes\n"
        "from pathlib import Path\n"
        "from graphc.codegen.llvm.kernel import NativeKernel\n"
        "from graphc.runtime.cpu.llvm import addresses\n"
        f"made = [NativeKernel(f'k{{i}}', {SQUARE!r}.format(name=f'k{{i}}')) for i in range(5)]\n"
        "for address in addresses(made, Path(sys.argv[1])).values():\n"
        "    assert ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(address)(7) == 49\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    running = [subprocess.Popen(command) for _ in range(3)]
    assert [process.wait() for process in running] == [0, 0, 0]
    assert len(os.listdir(tmp_path)) == 5
