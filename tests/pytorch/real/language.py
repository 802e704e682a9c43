"""Language models of transformers, with the heads and labels of their usual training."""

from __future__ import annotations

from typing import Any

import torch
from pytorch.real.cases import Case, Entry, token_ids

VOCABULARY, BATCH, LENGTH = 256, 4, 64

BERT = {
    "vocab_size": VOCABULARY, "hidden_size": 128, "intermediate_size": 256,
    "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128,
    "pad_token_id": 0,
}  # fmt: skip
LLAMA = {**BERT, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2}
GPT2 = {
    "vocab_size": VOCABULARY, "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 128,
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 128, "d_ff": 256, "d_kv": 32, "num_layers": 2,
    "num_heads": 4, "pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0,
}  # fmt: skip
BART = {
    "vocab_size": VOCABULARY, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256, "max_position_embeddings": 128, "pad_token_id": 0,
    "decoder_start_token_id": 1,
}  # fmt: skip
SPECIAL = {
    "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2,
}  # fmt: skip
DEBERTA = {**BERT, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}


def build(name: str, config: str, sizes: dict[str, Any]) -> torch.nn.Module:
    """Return a module of a class of transformers in training mode, with random weights."""
    import transformers

    settings = getattr(transformers, f"{config}Config")(**sizes)
    return getattr(transformers, name)(settings).train()


def tokens(name: str, config: str, **sizes: Any) -> Entry:
    """Return an entry whose labels are tokens: a causal, masked or seq2seq language model."""

    def make(batch: int = BATCH, length: int = LENGTH) -> Case:
        x = token_ids(VOCABULARY, batch, length)
        given = {"input_ids": x, "attention_mask": torch.ones_like(x), "labels": x.clone()}
        return Case(build(name, config, sizes), kwargs=given)

    return name, make


def labeled(name: str, config: str, *shape: int, **sizes: Any) -> Entry:
    """Return a classifier of sequences, or of tokens if `shape` is (batch, length)."""

    def make() -> Case:
        x = token_ids(VOCABULARY, BATCH, LENGTH)
        given = {"input_ids": x, "attention_mask": torch.ones_like(x)}
        given["labels"] = torch.randint(2, shape or (BATCH,))
        return Case(build(name, config, sizes), kwargs=given)

    return name, make


def answers(name: str, config: str, **sizes: Any) -> Entry:
    """Return a model that finds the first and the last token of an answer."""

    def make() -> Case:
        ends = {f"{end}_positions": torch.randint(LENGTH, (BATCH,)) for end in ("start", "end")}
        given = {"input_ids": token_ids(VOCABULARY, BATCH, LENGTH), **ends}
        return Case(build(name, config, sizes), kwargs=given)

    return name, make


CLASSES = dict(
    [
        tokens("GPT2LMHeadModel", "GPT2", **GPT2),
        tokens("LlamaForCausalLM", "Llama", **LLAMA),
        tokens("MistralForCausalLM", "Mistral", **LLAMA),
        tokens("Qwen3ForCausalLM", "Qwen3", head_dim=32, **LLAMA),
        tokens("Gemma2ForCausalLM", "Gemma2", head_dim=32, **LLAMA),
        tokens("Phi3ForCausalLM", "Phi3", **LLAMA),
        tokens("MixtralForCausalLM", "Mixtral", num_local_experts=4, **LLAMA),
        tokens("GPTNeoXForCausalLM", "GPTNeoX", bos_token_id=1, eos_token_id=2, **BERT),
        tokens("OPTForCausalLM", "OPT", ffn_dim=256, word_embed_proj_dim=128, **BERT),
        tokens("BloomForCausalLM", "Bloom", n_layer=2, n_head=4, **BERT),
        tokens("MambaForCausalLM", "Mamba", **{**BERT, "hidden_size": 32}),
        tokens("BertForMaskedLM", "Bert", **BERT),
        tokens("RobertaForMaskedLM", "Roberta", **BERT),
        tokens("AlbertForMaskedLM", "Albert", embedding_size=64, **BERT),
        tokens("ElectraForMaskedLM", "Electra", embedding_size=64, **BERT),
        tokens("ModernBertForMaskedLM", "ModernBert", **BERT, **SPECIAL),
        tokens("DebertaV2ForMaskedLM", "DebertaV2", position_buckets=16, **DEBERTA),
        tokens(
            "DistilBertForMaskedLM", "DistilBert", vocab_size=VOCABULARY, dim=128, n_layers=2,
            n_heads=4, hidden_dim=256,
        ),
        tokens("T5ForConditionalGeneration", "T5", **T5),
        tokens("MT5ForConditionalGeneration", "MT5", **T5),
        tokens("BartForConditionalGeneration", "Bart", **BART),
        tokens("MarianMTModel", "Marian", **BART),
        tokens("PegasusForConditionalGeneration", "Pegasus", **BART),
        labeled("BertForSequenceClassification", "Bert", **BERT),
        labeled("DebertaForSequenceClassification", "Deberta", **DEBERTA),
        labeled("DebertaV2ForSequenceClassification", "DebertaV2", position_buckets=16, **DEBERTA),
        labeled("LlamaForSequenceClassification", "Llama", **LLAMA),
        labeled(
            "XLNetForSequenceClassification", "XLNet", vocab_size=VOCABULARY, d_model=128,
            n_layer=2, n_head=4, d_inner=256,
        ),
        labeled("RobertaForTokenClassification", "Roberta", BATCH, LENGTH, **BERT),
        answers("BertForQuestionAnswering", "Bert", **BERT),
    ]
)  # fmt: skip
