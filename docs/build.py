"""Builds the site of the documents: ``make docs``. Warnings are errors.

The copied pages have the folders of the checkout, so links work in both.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
COLOR = re.compile(r"\x1b\[[\d;]*m")
EXPECTED = re.compile(r"Build (started|finished)|No issues found|\s*$")


def copy_pages() -> None:
    """Copy pages, pictures, results and their sources to build/pages, as in the checkout."""
    shutil.rmtree(PAGES, ignore_errors=True)
    code = shutil.ignore_patterns("*.py", "__pycache__")
    for folder in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=code)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, PAGES)
    for sources in (ROOT / "benchmarks").glob("*.json"):
        shutil.copy(sources, PAGES / "benchmarks")


def build() -> list[str]:
    """Build the site and return its faults: lines that a good build does not print."""
    copy_pages()
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = COLOR.sub("", done.stdout + done.stderr).splitlines()
    faults = [line for line in lines if not EXPECTED.match(line)]
    return faults or ([f"zensical failed with {done.returncode}"] if done.returncode else [])


if __name__ == "__main__":
    faults = build()
    print("\n".join(faults) or f"the site is in {ROOT / 'build' / 'site'}")
    sys.exit(bool(faults))
