"""Shared settings: property tests are reproducible, have no deadline, and run longer at night."""

import gc
import importlib.util
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


def pytest_collection_finish():
    """Leave modules and tests out of garbage collections, which would take most of a second."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Report that tests of graphc.torch were skipped, if torch is not installed."""
    if importlib.util.find_spec("torch") is None:
        terminalreporter.write_line(
            "Skipped tests of graphc.torch, which need torch. `make torch` installs a CPU build."
        )
