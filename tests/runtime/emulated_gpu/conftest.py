"""What tests of the GPU runtime share."""

import pytest
from runtime.emulated_gpu import fake_cudnn

from graphc.runtime.gpu.cudnn import Cudnn


@pytest.fixture(scope="session")
def folder(tmp_path_factory, request):
    """Where libraries of kernels are built, once for all tests and workers."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if hasattr(request.config, "workerinput") else own
    found = shared / "kernels"
    found.mkdir(exist_ok=True)
    return found


@pytest.fixture
def cudnn():
    handle = Cudnn(fake_cudnn)
    yield handle
    handle.close()
    assert not fake_cudnn.HANDLES
