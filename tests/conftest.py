"""Shared settings: property tests are reproducible, have no deadline, and run longer at night."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from graphc.runtime.cpu import step_table

settings.register_profile("nightly", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("graphc", settings.get_profile("nightly"), max_examples=20)
settings.load_profile("graphc")

if "PYTEST_XDIST_WORKER" in os.environ:  # the workers share the processors
    step_table.processors = lambda: 1


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")
    parser.addoption("--emulated-gpu", action="store_true", help="run tests/on_gpu without a GPU")


@pytest.fixture
def golden(request):
    """Compare a text with a file in tests/golden; `--update-golden` writes it."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text)
        assert text == path.read_text()

    return check
