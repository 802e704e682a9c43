"""The answer of `graphc fit` that the README and its guide show, for Llama-3-8B."""

import re
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

from graphc.cli import main  # noqa: E402

ROOT = Path(__file__).parents[3]


def write_llama(folder):
    """Write the configuration of Llama-3-8B."""
    transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=8192,
        rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(folder)


def test_the_first_and_the_last_line_are_those_of_the_documents(tmp_path, monkeypatch, capsys):
    readme, guide = (ROOT / name for name in ("README.md", "docs/fit.md"))
    command, first, last = re.search(
        r"\$ graphc (fit .*)\n(.*)\n\.\.\.\n(.*)\n", readme.read_text()
    ).groups()
    write_llama(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(command.split()) == (0 if first.startswith("fits") else 3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == first
    assert last in lines
    shown = re.search(r"```text\n(fits h100.*?)```", guide.read_text(), re.DOTALL)[1]
    assert {line for line in shown.splitlines() if line} <= set(lines)
