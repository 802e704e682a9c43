"""Every example runs."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.stem.endswith("torch")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path):
    runs(path)


@pytest.mark.peers
def test_example_of_torch():
    pytest.importorskip("torch", reason="torch is not installed")
    told = runs(ROOT / "examples" / "finetune_torch.py")
    eager, planned, measured = map(float, re.findall(r"([\d.]+) MiB", told))
    assert max(planned, measured) <= 2 / 3 * eager + 0.1


def runs(path):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "False" not in done.stdout
    return done.stdout
