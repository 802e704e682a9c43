"""What tests of kernels share."""

import pytest
from codegen.convolution_cases import all_cases


@pytest.fixture(scope="session")
def cases():
    with pytest.MonkeyPatch.context() as monkeypatch:
        return all_cases(monkeypatch)
