"""Tests measure ops into a cache of their own."""

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
