"""Planned sizes of real classes: padded steps equal eager unpadded ones, and budgets hold."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*is set")]

from pytorch.real import language  # noqa: E402
from torch_cases.steps import SLACK, Run  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import OptionError, TorchError  # noqa: E402

BATCH = 2
PLAIN = {"attention_dropout": 0.0, "hidden_dropout": 0.0, "dropout": 0.0}


def token_ids(*shape):
    return torch.randint(8, language.VOCABULARY, shape)


def causal(length):
    tokens = token_ids(BATCH, length)
    return {"input_ids": tokens, "labels": tokens}


def hidden(length):
    """Tokens of rows with different lengths, as by a collator: the shorter row is padded."""
    tokens = token_ids(BATCH, length)
    mask = torch.ones_like(tokens)
    mask[0, length - length // 3 :] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


def classified(length):
    return {"input_ids": token_ids(BATCH, length), "labels": torch.randint(2, (BATCH,))}


def translated(length):
    return {"input_ids": token_ids(BATCH, 2 * length), "labels": token_ids(BATCH, length)}


def transcribed(length):
    sound = torch.randn(BATCH, 16, 100, dtype=torch.float64)
    return {"input_features": sound, "labels": token_ids(BATCH, length)}


GPT2 = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, **language.GPT2}
BERT = {
    "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **language.BERT,
}  # fmt: skip
WHISPER = {
    "vocab_size": language.VOCABULARY, "num_mel_bins": 16, "max_source_positions": 50,
    "max_target_positions": 64, "d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None,
}  # fmt: skip

IDS = {"input_ids": {1: (16, 32, 48)}}
BOTH = [{"input_ids": {1: 2 * n}, "labels": {1: n}} for n in (16, 32, 48)]

CASES = {
    "Llama": ("LlamaForCausalLM", "Llama", language.LLAMA, causal, IDS),
    "Llama, rows of several lengths": ("LlamaForCausalLM", "Llama", language.LLAMA, hidden, IDS),
    "GPT-2": ("GPT2LMHeadModel", "GPT2", GPT2, hidden, IDS),
    "BERT": ("BertForMaskedLM", "Bert", BERT, causal, IDS),
    "BERT, classes": ("BertForSequenceClassification", "Bert", BERT, classified, IDS),
    "T5": (
        "T5ForConditionalGeneration", "T5", {**language.T5, "dropout_rate": 0.0}, translated, BOTH,
    ),
    "Whisper": (
        "WhisperForConditionalGeneration", "Whisper", WHISPER, transcribed,
        {"labels": {1: (16, 32, 48)}},
    ),
}  # fmt: skip


def loss_and_gradients(module, call, given):
    module.zero_grad()
    loss = call(**given).loss
    loss.backward()
    return loss.detach(), {n: p.grad for n, p in module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("case", CASES)
def test_padded_steps_equal_unpadded_ones_within_the_budget(case):
    name, config, settings, made, sizes = CASES[case]
    torch.manual_seed(0)
    module = language.build(name, config, settings).double()
    whole = graphc.torch.plan(module, (), "knee", kwargs=made(48)).report
    budget = (whole.least_bytes + whole.plain_bytes) // 2
    torch.compiler.reset()
    step = graphc.torch.plan(module, (), budget, kwargs=made(20), sizes=sizes)
    count, rows = len(step.plans), step.report.sizes
    assert len(rows) == 3
    assert all(row.peak_bytes <= budget for row in rows)
    assert rows[0].extra_time == 0 < rows[-1].extra_time
    for length in (48, 5, 16, 17, 30, 41):
        given = made(length)
        loss, found = loss_and_gradients(module, step, given)
        eager, wanted = loss_and_gradients(module, module, given)
        torch.testing.assert_close(loss, eager, rtol=1e-6, atol=0)  # a loss in float32
        assert found.keys() == wanted.keys()
        largest = max(each.abs().max() for each in wanted.values())
        for each in wanted:
            torch.testing.assert_close(found[each], wanted[each], rtol=0, atol=1e-9 * largest)
        row = next(row for row, size in zip(rows, (16, 32, 48), strict=True) if length <= size)
        run = Run(module, step, (), given, lambda output: output.loss.backward())
        assert run.peak() <= row.peak_bytes + SLACK // 64
    assert len(step.plans) == count
    with pytest.raises(TorchError, match="no planned size holds"):
        step(**made(49))


def bert(name="BertForMaskedLM"):
    torch.manual_seed(0)
    return language.build(name, "Bert", BERT).double()


@pytest.mark.parametrize("named", ["input_ids", "labels", "token_type_ids"])
def test_a_model_gets_a_mask_by_whatever_input_is_named(named):
    module = bert()
    given = {**causal(20), "token_type_ids": torch.zeros(BATCH, 20, dtype=torch.long)}
    step = graphc.torch.plan(module, (), "knee", kwargs=given, sizes={named: {1: (16, 32)}})
    short = {name: each[:, :11].contiguous() for name, each in given.items()}
    loss, found = loss_and_gradients(module, step, short)
    eager, wanted = loss_and_gradients(module, module, short)
    torch.testing.assert_close((loss, found), (eager, wanted), rtol=1e-6, atol=1e-10)


def test_a_mask_of_choices_has_the_shape_of_the_tokens():
    module = bert("BertForMultipleChoice")
    given = {"input_ids": token_ids(BATCH, 3, 20), "labels": torch.randint(3, (BATCH,))}
    step = graphc.torch.plan(module, (), "knee", kwargs=given, sizes={"input_ids": {2: (16, 32)}})
    short = {**given, "input_ids": given["input_ids"][:, :, :11]}
    torch.testing.assert_close(step(**short).loss, module(**short).loss, rtol=1e-6, atol=0)


def test_lengths_that_do_not_fit_are_refused():
    module, given = bert(), causal(20)
    most = module.config.max_position_embeddings
    with pytest.raises(OptionError, match=f"has positions for {most} "):
        graphc.torch.plan(module, (), kwargs=given, sizes={"input_ids": {1: (16, most + 1)}})
    short = {**given, "labels": given["labels"][:, :10]}
    with pytest.raises(OptionError, match=r"labels follows input_ids\[1\], but has the length 10"):
        graphc.torch.plan(module, (), kwargs=short, sizes=IDS)


def test_padding_that_a_model_cannot_ignore_is_refused():
    config = transformers.FNetConfig(
        vocab_size=language.VOCABULARY, hidden_size=32, num_hidden_layers=1, intermediate_size=64,
        max_position_embeddings=64, hidden_dropout_prob=0.0,
    )  # fmt: skip
    module = transformers.FNetForMaskedLM(config).double()
    with pytest.raises(TorchError, match="padding changes the loss of this module"):
        graphc.torch.plan(module, (), kwargs=causal(20), sizes=IDS)
    step = graphc.torch.plan(
        module, (), "knee", kwargs=causal(20), sizes=IDS, pad={"input_ids": None, "labels": None}
    )
    with pytest.raises(TorchError, match="give a number for input_ids and labels to pad"):
        step(**causal(20))


def test_images_have_exact_sizes():
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
        image_size=32, patch_size=8, hidden_dropout_prob=0.0, num_labels=3,
    )  # fmt: skip
    module = transformers.ViTForImageClassification(config).double()

    def made(side):
        images = torch.randn(BATCH, 3, side, side, dtype=torch.float64)
        labels = torch.zeros(BATCH, dtype=torch.long)
        return {"pixel_values": images, "labels": labels, "interpolate_pos_encoding": True}

    sizes = {"pixel_values": {(2, 3): (16, 32, 48)}}
    step = graphc.torch.plan(module, (), "knee", kwargs=made(32), sizes=sizes)
    count = len(step.plans)
    for side in (48, 16, 32):
        given = made(side)
        loss, found = loss_and_gradients(module, step, given)
        eager, wanted = loss_and_gradients(module, module, given)
        torch.testing.assert_close((loss, found), (eager, wanted), rtol=1e-10, atol=1e-12)
    assert len(step.plans) == count
    with pytest.raises(TorchError, match="give a number for pixel_values to pad"):
        step(**made(40))
