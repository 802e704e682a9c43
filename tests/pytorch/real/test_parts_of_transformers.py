"""The parts of transformers that graphc.torch.budget.trace.of_transformers reads or replaces."""

import importlib
import inspect

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = pytest.mark.peers

from graphc.torch.budget.trace import of_transformers as parts  # noqa: E402


@pytest.mark.parametrize("name", sorted({*parts.WITH_DATA, *parts.WITHOUT_DATA}))
def test_masks_call_the_functions_that_are_replaced(name):
    masks = importlib.import_module(parts.MASKS)
    assert callable(getattr(masks, name))
    called = inspect.getsource(masks).count(f"{name}(")
    defined = inspect.getsource(masks).count(f"def {name}(")
    assert called > defined


def test_hooks_that_capture_outputs_are_installed_by_a_function_of_the_model():
    capturing = importlib.import_module(parts.CAPTURING)
    assert list(inspect.signature(getattr(capturing, parts.INSTALLS)).parameters) == ["model"]
    source = inspect.getsource(capturing)
    assert "_can_record_outputs" in source
    assert "_output_capturing_hooks_installed" in source


def test_heads_for_classification_set_the_type_of_their_problem():
    config = transformers.BertConfig(
        hidden_size=32, num_attention_heads=2, num_hidden_layers=1, intermediate_size=32
    )
    assert config.problem_type is None
    head = transformers.BertForSequenceClassification(config)
    assert type(head).__name__.endswith(parts.HEADS)
    tokens = torch.zeros(2, 4, dtype=torch.long)
    head(tokens, labels=torch.tensor([0, 1]))
    assert config.problem_type == parts._problem_type(config.num_labels, torch.tensor([0, 1]))


def test_models_have_a_cache_to_turn_off():
    assert transformers.LlamaConfig().use_cache is True
    assert transformers.GPT2Config().use_cache is True


def test_encoders_of_audio_ask_for_the_gradient_of_their_input():
    wav2vec2 = importlib.import_module("transformers.models.wav2vec2.modeling_wav2vec2")
    assert "self._requires_grad = True" in inspect.getsource(wav2vec2)
