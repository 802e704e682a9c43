"""The implementations of attention in `graphc fit`, for configurations of transformers."""

import json

import pytest

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

from graphc.cli import main  # noqa: E402

BATCH, LENGTH, HEADS, LAYERS = 2, 1024, 8, 2
SIZES = {
    "hidden_size": 512,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def fit(capsys, folder, *options, dtype="bfloat16"):
    """The exit code and the report, or the error."""
    config = str(folder / "config.json")
    sizes = ("--batch", str(BATCH), "--seq", str(LENGTH), "--dtype", dtype)
    code = main(["fit", config, *sizes, "--no-plans", "--json", *options])
    out, error = capsys.readouterr()
    return code, json.loads(out) if out else error


def test_flash_saves_no_probabilities_and_no_mask(tmp_path, capsys):
    transformers.MistralConfig(sliding_window=256, **SIZES).save_pretrained(tmp_path)
    eager, sdpa, flash = (
        fit(capsys, tmp_path, "--attention", each)[1]["eager_bytes"]
        for each in ("eager", "sdpa", "flash")
    )
    probabilities = LAYERS * BATCH * HEADS * LENGTH**2 * 2
    mask = BATCH * LENGTH**2 * 2
    assert eager - flash >= probabilities
    assert sdpa - flash >= mask


def test_the_default_is_that_of_transformers(tmp_path, capsys):
    """Gemma 2 has no attention by torch's function, because it caps scores."""
    transformers.Gemma2Config(head_dim=64, **SIZES).save_pretrained(tmp_path)
    default, eager = (fit(capsys, tmp_path, *given) for given in ((), ("--attention", "eager")))
    assert default == eager


def test_a_model_without_flash_attention_is_told(tmp_path, capsys):
    transformers.T5Config().save_pretrained(tmp_path)
    code, error = fit(capsys, tmp_path, "--attention", "flash", "--task", "seq2seq-lm")
    assert code == 2
    assert "T5ForConditionalGeneration has no flash attention; omit" in error


def test_flash_attention_of_float32_is_refused(tmp_path, capsys):
    transformers.LlamaConfig(**SIZES).save_pretrained(tmp_path)
    code, error = fit(capsys, tmp_path, "--attention", "flash", dtype="float32")
    assert code == 2
    assert "add --dtype bfloat16 or --autocast bfloat16" in error
