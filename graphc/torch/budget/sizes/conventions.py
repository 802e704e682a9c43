"""Conventions of Hugging Face's collators: inputs that share a length, and how they are padded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from graphc.errors import OptionError

SEQUENCE = (
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "token_type_ids",
    "mm_token_type_ids",
    "position_ids",
    "global_attention_mask",
    "labels",
)
"""Inputs whose length is that of the sequence, or of the encoder's; `labels` without a decoder."""

DECODER = (
    "decoder_input_ids",
    "decoder_inputs_embeds",
    "decoder_attention_mask",
    "decoder_position_ids",
    "labels",
)
"""Inputs of a model with encoder and decoder whose length is that of the decoder."""

IGNORED = -100
"""The label that losses ignore."""

MASK = "attention_mask"


def config_of(module: nn.Module) -> Any:
    """Return the config of a model of transformers, or None."""
    config = getattr(module, "config", None)
    return config if hasattr(config, "model_type") else None


def followers(module: nn.Module, name: str) -> tuple[str, ...]:
    """Return the other inputs of a model that have the length of an input."""
    config = config_of(module)
    if config is None:
        return ()
    has_decoder = bool(getattr(config, "is_encoder_decoder", False))
    encoder = tuple(each for each in SEQUENCE if not has_decoder or each != "labels")
    groups = (encoder, DECODER) if has_decoder else (encoder,)
    return tuple(each for group in groups if name in group for each in group if each != name)


def dimension_of(name: str, tensor: torch.Tensor) -> int | None:
    """Return the dimension of an input that is its length, or None if it has none.

    Labels of several classes, which are numbers with a fraction, have no length.
    """
    if tensor.ndim < 2 or (name == "labels" and tensor.is_floating_point()):
        return None
    if name.endswith("inputs_embeds"):
        return 1
    is_prepared_mask = name.endswith("mask") and tensor.ndim > 2
    return None if is_prepared_mask else tensor.ndim - 1


def numbers_of(module: nn.Module) -> dict[str, float]:
    """Return the number that fills the rest of each input of a model, by its name."""
    config = config_of(module)
    if config is None:
        return {}
    token = getattr(config, "pad_token_id", None)
    token = token if isinstance(token, int) and token >= 0 else 0
    numbers: dict[str, float] = dict.fromkeys((*SEQUENCE, *DECODER), 0)
    return {**numbers, "input_ids": token, "decoder_input_ids": token, "labels": IGNORED}


def needs_mask(module: nn.Module, given: Mapping[str, Any], names: set[str]) -> bool:
    """Return whether calls without an attention mask get one, so that padding changes nothing.

    `given` are the arguments by name, and `names` those that vary. A causal model needs no mask:
    padding comes after all other positions. Its losses of experts count every position, however.
    """
    config = config_of(module)
    if config is None or given.get(MASK) is not None or not names & {"input_ids", "inputs_embeds"}:
        return False
    if MASK not in inspect.signature(module.forward).parameters:
        return False
    return not is_causal(module) or bool(getattr(config, "output_router_logits", False))


def is_causal(module: nn.Module) -> bool:
    """Return whether all attention of a model of transformers is causal, by its attributes."""
    kinds = {
        each.is_causal
        for each in module.modules()
        if isinstance(getattr(each, "is_causal", None), bool)
    }
    return kinds == {True} and bool(getattr(config_of(module), "is_causal", True))


def refuse_last_token(module: nn.Module, names: set[str]) -> None:
    """Raise `OptionError` for a classifier of sequences that would read a padded position."""
    config = config_of(module)
    if (
        config is not None
        and type(module).__name__.endswith("ForSequenceClassification")
        and "input_ids" in names
        and getattr(config, "pad_token_id", None) is None
        and is_causal(module)
    ):
        raise OptionError(
            f"{type(module).__name__} reads the last token that is not padding, so planned sizes "
            "need config.pad_token_id; set it to the token that pads"
        )
