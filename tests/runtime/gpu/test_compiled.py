"""NVRTC compiles every generated kernel, and what it makes of them."""

import re

import pytest
from runtime.gpu.cases import all_cases
from runtime.gpu.on_cpu import generated, kernels_in

from graphc.runtime.gpu.nvrtc import KernelError, compile_cubin, compile_ptx
from graphc.runtime.gpu.source.kernel import Kernel, module_text


@pytest.fixture(scope="session")
def text():
    return module_text(kernels_in([generated(c.node, c.arrays()) for c in all_cases()]))


@pytest.mark.parametrize("architecture", [80, 90, 100])
def test_every_kernel_compiles(text, architecture):
    names = set(re.findall(r"__global__ void (\w+)", text))
    cubin = compile_cubin(text, architecture)
    assert cubin.startswith(b"\x7fELF")
    assert all(f".text.{name}\0".encode() in cubin for name in names)


def test_a_broken_kernel_does_not_compile():
    broken = Kernel("broken", 'extern "C" __global__ void broken(float *y) { y[0] = missing; }')
    with pytest.raises(KernelError, match='"missing" is undefined'):
        compile_cubin(module_text([broken]), 90)
