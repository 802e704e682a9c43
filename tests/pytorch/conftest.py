"""Tests measure ops into a cache of their own, and start with nothing compiled."""

import importlib.util
import os

import pytest


@pytest.fixture(scope="session", autouse=True)
def cache_of_costs(tmp_path_factory):
    """What the user has measured stays as it is, and decides nothing here."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["XDG_CACHE_HOME"]
    else:
        os.environ["XDG_CACHE_HOME"] = before


@pytest.fixture(autouse=True)
def compiled_anew():
    """Nothing that a test before has compiled, or drawn, counts here."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        torch.compiler.reset()
        torch.manual_seed(0)
