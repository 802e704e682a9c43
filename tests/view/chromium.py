"""A Chromium to open pages in: `make browser` installs one, and Playwright, which drives it."""

import os
import shutil
from contextlib import contextmanager

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def opened():
    """Playwright's browser; skips the test where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("no Chromium on the path; `make browser` installs one")
    with playwright.sync_playwright() as driver:
        # Pages are our own files, and a container's root has no sandbox to offer.
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()
