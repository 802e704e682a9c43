"""Builds the site of the documents: ``make docs``. Whatever it is warned of is an error.

The pages are copied as they lie in the checkout, so that links between them hold here and there.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
COLOUR = re.compile(r"\x1b\[[\d;]*m")
SAID = re.compile(r"Build (started|finished)|No issues found|\s*$")


def copy_pages() -> None:
    """Put all Markdown, pictures and results under build/pages, where they lie in the checkout."""
    shutil.rmtree(PAGES, ignore_errors=True)
    code = shutil.ignore_patterns("*.py", "__pycache__")
    for folder in ("docs", "benchmarks/results"):
        shutil.copytree(ROOT / folder, PAGES / folder, ignore=code)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, PAGES)


def build() -> list[str]:
    """Build the site, and return what is wrong with it: lines that a good build does not print."""
    copy_pages()
    command = [Path(sys.executable).with_name("zensical"), "build", "--strict", "--clean"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    lines = COLOUR.sub("", done.stdout + done.stderr).splitlines()
    faults = [line for line in lines if not SAID.match(line)]
    return faults or ([f"zensical failed with {done.returncode}"] if done.returncode else [])


if __name__ == "__main__":
    faults = build()
    print("\n".join(faults) or f"the site is in {ROOT / 'build' / 'site'}")
    sys.exit(bool(faults))
