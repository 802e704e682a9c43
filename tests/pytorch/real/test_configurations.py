"""Configurations that transformers writes, as `graphc fit` reads them."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from graphc.errors import OptionError  # noqa: E402
from graphc.torch.fit.models import Sizes, from_config  # noqa: E402


def test_infinity_is_read_as_transformers_writes_it(tmp_path):
    config = transformers.Mamba2Config(
        hidden_size=32, num_heads=4, head_dim=16, n_groups=1, num_hidden_layers=1, vocab_size=50
    )
    config.save_pretrained(tmp_path)
    assert "Infinity" in (tmp_path / "config.json").read_text()
    module, *_ = from_config(tmp_path, "causal-lm").make(Sizes(seq=8))
    assert tuple(module.config.time_step_limit) == config.time_step_limit


def test_an_entry_that_a_configuration_refuses_is_one_line(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bart", "num_labels": "many"}')
    with pytest.raises(OptionError, match=r"config\.json"):
        from_config(tmp_path, "causal-lm")


SMALL = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize(
    ("kind", "positions"),
    [("roberta", 514), ("xlm-roberta", 514), ("camembert", 40), ("mpnet", 40), ("bert", 40)],
)
def test_the_longest_sequence_is_the_longest_that_runs(tmp_path, kind, positions):
    """RoBERTa's first position has the number of padding plus 1."""
    config = transformers.AutoConfig.for_model(
        kind, max_position_embeddings=positions, intermediate_size=16, **SMALL
    )
    config.save_pretrained(tmp_path)
    most = from_config(tmp_path, "masked-lm").longest
    module = transformers.AutoModelForMaskedLM.from_config(config).eval()
    module(input_ids=torch.full((1, most), 7))
    with pytest.raises((IndexError, RuntimeError)):
        module(input_ids=torch.full((1, most + 1), 7))
