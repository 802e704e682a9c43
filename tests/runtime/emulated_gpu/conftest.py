"""What tests of the GPU runtime share."""

import pytest
from runtime.emulated_gpu import fake_cudnn

from graphc.runtime.gpu.cudnn import Cudnn


@pytest.fixture
def cudnn():
    handle = Cudnn(fake_cudnn)
    yield handle
    handle.close()
    assert not fake_cudnn.HANDLES
