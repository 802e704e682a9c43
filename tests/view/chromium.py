"""A Chromium to open pages in: `make browser` installs one, and Playwright, which drives it."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def opened():
    """Playwright's browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    with playwright.sync_playwright() as driver:
        path = path or driver.chromium.executable_path
        if not Path(path).exists():
            pytest.skip("there is no Chromium; `make browser` installs one")
        # Pages are our own files, and a container's root has no sandbox to offer.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
