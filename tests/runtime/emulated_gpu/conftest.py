"""What tests of the GPU runtime share."""

import gc

import pytest
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import EmulatedDevice, Kernels

from graphc.runtime.gpu.cudnn import Cudnn


@pytest.fixture(autouse=True)
def one_compilation(monkeypatch):
    """Compile each kernel of a test once, for all devices of the test.

    Not once for all tests: the texts of libraries, by which they are cached, would depend on the
    order of tests.
    """
    monkeypatch.setattr(EmulatedDevice, "shared", Kernels())


@pytest.fixture
def cudnn():
    handle = Cudnn(fake_cudnn)
    yield handle
    handle.close()
    if fake_cudnn.HANDLES:  # a full collection takes a second among thousands of tests
        gc.collect()  # programs in cycles close their own handles
    assert not fake_cudnn.HANDLES
