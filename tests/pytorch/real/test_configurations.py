"""Configurations that transformers writes, as `graphc fit` reads them."""

import json

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from graphc.cli import main  # noqa: E402
from graphc.errors import GraphcError, OptionError  # noqa: E402
from graphc.torch.fit.configurations import from_config  # noqa: E402
from graphc.torch.fit.models import Sizes  # noqa: E402


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


def test_entries_that_a_step_does_not_follow_are_printed(tmp_path, capsys):
    config = transformers.LlamaConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, vocab_size=50, dtype="bfloat16",
        quantization_config={"quant_method": "bitsandbytes", "load_in_4bit": True},
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert main(["fit", str(tmp_path), "--seq", "8", "--no-plans", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["assumed"]["length"] == 8
    assert found["assumed"]["dtype"] == "float32"
    dtype, quantization = found["ignored"]
    assert dtype == "dtype bfloat16: see --dtype"
    assert quantization.startswith("quantization_config: ")


@pytest.mark.parametrize(
    ("kind", "architectures", "made"),
    [
        ("vit", ["ViTForImageClassification"], "ViTForImageClassification"),
        ("vit", None, "ViTForImageClassification"),
        ("deit", None, "DeiTForImageClassification"),
        ("bert", ["BertForSequenceClassification"], "BertForSequenceClassification"),
        ("bert", ["BertModel"], "BertLMHeadModel"),
        ("t5", ["T5ForConditionalGeneration"], "T5ForConditionalGeneration"),
        ("whisper", ["WhisperForConditionalGeneration"], "WhisperForConditionalGeneration"),
    ],
)
def test_the_task_is_that_of_the_class_in_the_configuration(tmp_path, kind, architectures, made):
    config = transformers.AutoConfig.for_model(kind, architectures=architectures, num_layers=1)
    config.save_pretrained(tmp_path)
    module, *_ = from_config(tmp_path).make(Sizes(seq=8))
    assert type(module).__name__ == made


@pytest.mark.parametrize("group", range(8))
def test_default_configurations_are_built_or_refused_in_a_line(tmp_path, group):
    """All types of transformers are tried, with two layers. Some defaults are incomplete."""
    built, refusals = 0, []
    for kind in sorted(transformers.CONFIG_MAPPING)[group::8]:
        try:
            defaults = vars(transformers.CONFIG_MAPPING[kind]())
        except Exception:  # the type refuses its own defaults
            defaults = {}
        few = {
            name: 2 for name, value in defaults.items()
            if "layers" in name and type(value) is int and value > 2
        }  # fmt: skip
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps({"model_type": kind, **few}))
        try:
            from_config(file).make(Sizes(seq=64))
            built += 1
        except GraphcError as error:
            refusals.append(str(error))
    assert built > 5
    assert [each for each in refusals if "\n" in each] == []


def test_a_task_without_a_class_is_refused_with_those_that_have_one(tmp_path):
    transformers.ViTConfig().save_pretrained(tmp_path)
    with pytest.raises(OptionError, match=r"for vit and --task causal-lm; choose --task image-cl"):
        from_config(tmp_path, "causal-lm")


@pytest.mark.parametrize("written", [["BertForQuestionAnswering"], [1], 5])
def test_classes_that_fit_does_not_know_are_refused_in_a_line(tmp_path, written):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "bert", "architectures": written})
    )
    with pytest.raises(
        OptionError, match=r"config.json: .*(choose --task|must be a list of names)"
    ):
        from_config(tmp_path)


def test_a_denoiser_without_a_size_asks_for_it(tmp_path):
    pytest.importorskip("diffusers", reason="diffusers is not installed")
    (tmp_path / "config.json").write_text(
        '{"_class_name": "UNet2DModel", "sample_size": null, "block_out_channels": [32, 32],'
        ' "down_block_types": ["DownBlock2D", "DownBlock2D"],'
        ' "up_block_types": ["UpBlock2D", "UpBlock2D"]}'
    )
    source = from_config(tmp_path)
    with pytest.raises(OptionError, match="no sample_size; give the side as --image"):
        source.make(Sizes())
    _, _, (x, _), _ = source.make(Sizes(image=16))
    assert x.shape[2:] == (16, 16)
