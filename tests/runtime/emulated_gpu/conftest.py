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
    if fake_cudnn.HANDLES:  # a full collection takes a second among thousands of tests
        gc.collect()  # programs in cycles close their own handles
    assert not fake_cudnn.HANDLES
