"""Compiled loops in both of their forms."""

import pytest

from graphc import jit


@pytest.fixture(scope="module", params=[-1, jit.LITTLE], ids=["compiled", "as written"])
def little(request):
    """Compiled loops, however few steps there are, and loops as they are written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jit, "LITTLE", request.param)
        yield
