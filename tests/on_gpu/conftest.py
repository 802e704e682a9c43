"""Tests that run on a GPU, and are skipped where there is none.

`--emulated-gpu` runs them on the CPU's emulation of one, which checks the tests themselves; those
that ask the driver are skipped then.
"""

import os

import pytest
from runtime.emulated_gpu.emulated import H200, emulate

from graphc.errors import GpuUnavailable
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.device import find_gpu


def broken(text):
    """A text of kernels in which exponentials are logarithms, for rehearsals with a fault."""
    return text.replace("expf(", "logf(")


def pytest_collection_modifyitems(items):
    for item in items:
        if "/tests/on_gpu/" in item.path.as_posix():
            item.add_marker(pytest.mark.gpu)


@pytest.fixture(autouse=True)
def gpu(request, monkeypatch):
    """The first GPU."""
    if request.config.getoption("--emulated-gpu"):
        emulate(monkeypatch, broken if os.environ.get("INJECT") == "kernel" else lambda text: text)
        return H200
    try:
        return find_gpu(0)
    except GpuUnavailable as error:
        pytest.skip(str(error))


@pytest.fixture
def driver(request, gpu):
    """The GPU itself, to ask its driver."""
    if request.config.getoption("--emulated-gpu"):
        pytest.skip("an emulated GPU has no driver")
    return CudaDevice(gpu)
