"""What tests of the GPU runtime share."""

import gc

import pytest
from runtime.emulated_gpu import fake_cudnn

from graphc.runtime.gpu.cudnn import Cudnn


@pytest.fixture
def cudnn():
    handle = Cudnn(fake_cudnn)
    yield handle
    handle.close()
    gc.collect()  # programs of the test, which close their own handles
    assert not fake_cudnn.HANDLES
