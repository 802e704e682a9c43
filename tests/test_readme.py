"""What the README shows is what graphc prints, and its figures are those of the result files."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from graphc.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"


def test_python_block_runs(tmp_path):
    (block,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "peak at step" in done.stdout
    assert (tmp_path / "run.safetensors").exists()


def test_table_is_what_compare_prints(capsys):
    main(["compare", "mlp", "layers=50", "hidden=1024", "batch=512"])
    printed = [line.split()[:-1] for line in capsys.readouterr().out.splitlines()[1:]]
    (table,) = re.findall(r"batch=512\n allocate.*?\n(.*?)```", README, re.DOTALL)
    assert [line.split()[:-1] for line in table.splitlines()] == printed


def rows(name):
    return json.loads((RESULTS / name).read_text())["rows"]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_step_time_ratio_is_the_committed_one(optimizer):
    (row,) = (r for r in rows("step_time.json") if r["network"].endswith(optimizer))
    assert f"{row['ratio']:.2f}" in README


def test_planning_time_is_the_committed_one():
    (row,) = (r for r in rows("planning_time.json") if r["layers"] == 10_000)
    assert f"{row['total_seconds']:.1f} s, {row['microseconds_per_node']:.0f} µs a node" in README
    assert f"{row['nodes']:,} nodes" in README
