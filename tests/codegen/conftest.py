"""What tests of kernels share."""

import pytest
from codegen.convolution_cases import all_cases
from codegen.fake_cublas import StandIn


@pytest.fixture(scope="session")
def cases():
    with pytest.MonkeyPatch.context() as monkeypatch:
        return all_cases(monkeypatch)


@pytest.fixture(scope="module")
def cublas():
    handle = StandIn()
    yield handle
    assert handle.live == 0
    handle.close()
