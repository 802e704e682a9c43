"""The answers of `graphc fit` to questions from public threads, in its guide."""

import re
from pathlib import Path

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

from graphc.cli import main  # noqa: E402

GUIDE = (Path(__file__).parents[3] / "docs" / "fit.md").read_text()
ROW = re.compile(r"^\| \[(.*?)\]\(https.*?\| `(.*?)` \| (.*?) \|$", re.MULTILINE)


def llama(width, inner, layers, heads):
    return transformers.LlamaConfig(
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        vocab_size=32000,
        max_position_embeddings=4096,
    )


def config_of(question):
    """The published sizes of the model in a question."""
    if "Whisper" in question:
        sizes = {f"{part}_layers": 32 for part in ("encoder", "decoder")}
        sizes |= {f"{part}_attention_heads": 20 for part in ("encoder", "decoder")}
        sizes |= {f"{part}_ffn_dim": 5120 for part in ("encoder", "decoder")}
        return transformers.WhisperConfig(d_model=1280, vocab_size=51865, dropout=0.0, **sizes)
    return llama(5120, 13824, 40, 40) if "13B" in question else llama(4096, 11008, 32, 32)


def test_there_are_five_questions():
    assert len(ROW.findall(GUIDE)) == 5


@pytest.mark.parametrize(("question", "options", "answer"), ROW.findall(GUIDE))
def test_the_first_line_is_the_answer(question, options, answer, tmp_path, monkeypatch, capsys):
    config_of(question).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = main(["fit", "config.json", "--no-plans", *options.split()])
    assert code == (0 if answer.startswith("fits") else 3)
    assert capsys.readouterr().out.splitlines()[0] == answer
