"""Every example runs."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(
    path for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("finetune_")
)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(path, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [str(path)])
    runpy.run_path(str(path), run_name="__main__")
    out, error = capsys.readouterr()
    assert (error, "False" in out) == ("", False)
    assert out


@pytest.mark.peers
def test_example_of_torch():
    pytest.importorskip("torch", reason="torch is not installed")
    told = runs(ROOT / "examples" / "finetune_torch.py")
    eager, planned, measured = map(float, re.findall(r"([\d.]+) MiB", told))
    assert max(planned, measured) <= 2 / 3 * eager + 0.1


@pytest.mark.slow
@pytest.mark.peers
def test_a_budget_takes_three_lines_of_a_script(tmp_path):
    """The plain script of the comments in the example trains to the same loss."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    path = ROOT / "examples" / "finetune_transformers.py"
    lines = path.read_text().splitlines()
    plain = [re.sub(r"\S.*# \d: (no such line)?", "", line) for line in lines]
    changed = [line for line, other in zip(lines, plain, strict=True) if line != other]
    assert len(changed) == 3
    assert "graphc" not in "\n".join(plain[plain.index("import torch") :])
    script = tmp_path / "plain.py"
    script.write_text("\n".join(plain))
    losses = [
        float(re.search(r"'train_loss': '?([\d.]+)", runs(each, tmp_path))[1])
        for each in (script, path)
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-3)
    assert (tmp_path / "finetuned" / "config.json").exists()


def runs(path, folder=None):
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert "False" not in done.stdout
    return done.stdout
