"""The cache of machine code."""

import os

import pytest

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.text.kernel import Kernel
from graphc.codegen.text.operands import in_one_piece
from graphc.runtime.gpu import cubins as module
from graphc.runtime.gpu.cubins import cubins
from graphc.runtime.gpu.nvrtc import KernelError


def kernels(*functions):
    nodes = [f(g.input("x", (8, 8))).node for f in functions]
    return [
        kernel
        for node in nodes
        for kernel in calls_of(
            node, {v: in_one_piece(v.type) for v in (*node.inputs, *node.outputs)}
        ).kernels
    ]


@pytest.fixture
def compiled(monkeypatch):
    """How often the compiler ran."""
    texts = []
    compile_cubin = module.compile_cubin

    def counted(text, architecture):
        texts.append(text)
        return compile_cubin(text, architecture)

    monkeypatch.setattr(module, "compile_cubin", counted)
    return texts


def test_kernels_are_compiled_once(tmp_path, compiled):
    both = kernels(g.tanh, g.exp)
    first = cubins(both, 90, tmp_path)
    assert list(first) == [kernel.name for kernel in both]
    assert all(code.startswith(b"\x7fELF") for code in first.values())
    assert len(compiled) == 2
    assert cubins([*both, *kernels(g.relu)], 90, tmp_path) | first == cubins(
        [*both, *kernels(g.relu)], 90, tmp_path
    )
    assert len(compiled) == 3


def test_architectures_are_apart(tmp_path, compiled):
    one = kernels(g.tanh)
    assert cubins(one, 90, tmp_path) != cubins(one, 80, tmp_path)
    assert len(compiled) == 2


@pytest.mark.parametrize("content", [b"", b"short", b"\x7fELF" + bytes(100)])
def test_a_broken_file_is_compiled_again(tmp_path, compiled, content):
    one = kernels(g.tanh)
    expected = cubins(one, 90, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert cubins(one, 90, tmp_path) == expected
    assert len(compiled) == 2
    assert cubins(one, 90, tmp_path) == expected
    assert len(compiled) == 2


def test_without_a_folder_nothing_is_kept(compiled):
    cubins(kernels(g.tanh), 90, None)
    cubins(kernels(g.tanh), 90, None)
    assert len(compiled) == 2


def test_a_folder_that_cannot_be_written_is_no_fault(tmp_path, compiled):
    (tmp_path / "file").write_text("")
    assert cubins(kernels(g.tanh), 90, tmp_path / "file" / "folder")
    assert os.listdir(tmp_path) == ["file"]


def test_a_broken_kernel_is_refused(tmp_path):
    broken = Kernel("broken", 'extern "C" __global__ void broken(float *y) { y[0] = missing; }')
    with pytest.raises(KernelError, match='"missing" is undefined'):
        cubins([broken], 90, tmp_path)
    assert list(tmp_path.iterdir()) == []
