"""Masks of transformers in planned steps: left out where eager mode leaves them out."""

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
masking = pytest.importorskip("transformers.masking_utils")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

import graphc  # noqa: E402

BATCH, LENGTH = 2, 32
AGAIN = "ignore:this step has been planned again"


@pytest.fixture
def model():
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=128, vocab_size=100, **sizes
    )
    return transformers.LlamaForCausalLM(config)


def example(hidden=0):
    """Tokens whose first `hidden` positions are padding."""
    tokens = torch.randint(100, (BATCH, LENGTH))
    mask = torch.ones_like(tokens)
    mask[:, :hidden] = 0
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens}


def masks_of(step):
    """The masks of attention in the last plan."""
    nodes = step.plans[-1].torch_steps.joint.nodes
    attended = [node for node in nodes if "attention" in str(node.target)]
    assert attended
    return [node.kwargs.get("attn_mask") for node in attended]


def test_a_mask_that_hides_nothing_is_left_out(model):
    given = example()
    step = graphc.torch.plan(model, (), kwargs=given, return_outputs=False, max_extra_time=0.0)
    assert set(masks_of(step)) == {None}
    assert any("masking_utils" in each.place for each in step.report.assumed)
    assert step.verify().same_bits


@pytest.mark.filterwarnings(AGAIN)
def test_a_mask_of_a_later_step_is_respected(model):
    step = graphc.torch.plan(model, (), kwargs=example(), max_extra_time=0.0)
    for hidden in (0, 5, 0, 7):
        given = example(hidden)
        torch.testing.assert_close(step(**given).loss, model(**given).loss)
    assert len(step.plans) == 2


def test_a_plan_that_may_not_assume_keeps_the_mask(model):
    given = example()
    step = graphc.torch.plan(model, (), kwargs=given, max_extra_time=0.0, assume="raise")
    assert None not in masks_of(step)
    given = example(5)
    torch.testing.assert_close(step(**given).loss, model(**given).loss)


def test_transformers_is_left_as_it_was(model):
    before = masking.is_tracing
    step = graphc.torch.plan(model, (), kwargs=example(), max_extra_time=0.0)
    step(**example()).loss.backward()
    with pytest.raises(ValueError, match="target batch_size"):
        graphc.torch.plan(model, (), kwargs={**example(), "labels": torch.ones(3, 5)})
    assert masking.is_tracing is before


@pytest.mark.parametrize("hidden", [{}, {"attention_mask": torch.ones(BATCH, LENGTH)}], ids=len)
def test_without_data_only_a_given_mask_stays(model, hidden):
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    given = {"input_ids": tokens, "labels": tokens, **hidden}
    step = graphc.torch.plan(model, (), kwargs=given, max_extra_time=0.0, device="h100")
    assert (None in masks_of(step)) is (not hidden)
    assert not step.report.assumed
