"""Conventions of Hugging Face's collators: inputs that share a length, and how they are padded."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
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

TOKENS = "input_ids", "inputs_embeds", "decoder_input_ids", "decoder_inputs_embeds"
"""Inputs with one position of a model for each element."""


def config_of(module: nn.Module) -> Any:
    """Return the config of a model of transformers, or of the one it wraps, or None."""
    config = getattr(model_of(module), "config", None)
    return config if hasattr(config, "model_type") else None


def model_of(module: nn.Module) -> nn.Module:
    """Return the model inside adapters of PEFT, and wrappers that pass keyword arguments on."""
    while True:
        base = getattr(module, "get_base_model", None)
        inner = base() if callable(base) else getattr(module, "module", None)
        kinds = {each.kind for each in inspect.signature(module.forward).parameters.values()}
        passes = callable(base) or inspect.Parameter.VAR_KEYWORD in kinds
        if not isinstance(inner, nn.Module) or inner is module or not passes:
            return module
        module = inner


def followers(module: nn.Module, name: str) -> tuple[str, ...]:
    """Return the other inputs of a model that have the length of an input."""
    config = config_of(module)
    if config is None:
        return ()
    has_decoder = bool(getattr(config, "is_encoder_decoder", False))
    encoder = tuple(each for each in SEQUENCE if not has_decoder or each != "labels")
    groups = (encoder, DECODER) if has_decoder else (encoder,)
    return tuple(each for group in groups if name in group for each in group if each != name)


def dimension_of(name: str, given: Mapping[str, Any]) -> int | None:
    """Return the dimension of a given input that is its length, or None if it has none.

    Labels of several classes, which are numbers with a fraction, have no length.
    """
    tensor, tokens = given.get(name), given.get("input_ids")
    if not isinstance(tensor, torch.Tensor) or tensor.ndim < 2:
        return None
    if name == "labels" and tensor.is_floating_point():
        return None
    if name.endswith("inputs_embeds"):
        return 1
    is_mask_of_tokens = tensor.shape == getattr(tokens, "shape", None)
    is_prepared_mask = name.endswith("mask") and tensor.ndim > 2 and not is_mask_of_tokens
    return None if is_prepared_mask else tensor.ndim - 1


def numbers_of(module: nn.Module, given: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the number that fills the rest of each input of a model, by its name.

    Masks of numbers that are added to scores have none: these numbers differ.
    """
    config = config_of(module)
    if config is None:
        return {}
    token = getattr(config, "pad_token_id", None)
    token = token if isinstance(token, int) and token >= 0 else 0
    numbers = dict.fromkeys((*SEQUENCE, *DECODER), 0) | {
        "input_ids": token, "decoder_input_ids": token, "labels": IGNORED,
    }  # fmt: skip
    return {name: n for name, n in numbers.items() if not _is_added(name, given.get(name))}


def _is_added(name: str, tensor: object) -> bool:
    is_mask = name.endswith("mask") and isinstance(tensor, torch.Tensor)
    return is_mask and tensor.ndim > 2 and tensor.is_floating_point()  # type: ignore[attr-defined]


def refuse_number(name: str, number: float | None, dtype: torch.dtype) -> None:
    """Raise `OptionError` for a number that a type of elements cannot have."""
    if number is None or dtype.is_floating_point or dtype.is_complex:
        return
    low, high = (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)
    if not low <= number <= high or number != int(number):
        raise OptionError(
            f"pad must give an integer from {low} to {high} for {name}, which is "
            f"{str(dtype).removeprefix('torch.')}, got {number!r}"
        )


def refuse_too_long(module: nn.Module, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `OptionError` for a shape of tokens that exceeds a model's table of positions."""
    most = getattr(config_of(module), "max_position_embeddings", None)
    has_table = any(
        isinstance(each, nn.Embedding) and ("position" in name or name.endswith("wpe"))
        for name, each in module.named_modules()
    )
    if not isinstance(most, int) or not has_table:
        return
    for name in TOKENS:
        shape = shapes.get(name, (0, 0))
        length = shape[1] if name.endswith("inputs_embeds") else shape[-1]
        if length > most:
            raise OptionError(
                f"a size has {name} of length {length}, but the model has positions for "
                f"{most} (config.max_position_embeddings); plan shorter sizes"
            )


def needs_mask(module: nn.Module, given: Mapping[str, Any], varying: set[str]) -> bool:
    """Return whether calls without an attention mask get one, so that padding changes nothing.

    `given` are the arguments by name, and `varying` those that vary. A causal model needs no mask:
    padding comes after all other positions. Its losses of experts count every position, however.
    """
    config = config_of(module)
    if config is None or given.get(MASK) is not None:
        return False
    if not varying & {"input_ids", "inputs_embeds"}:
        return False
    if MASK not in inspect.signature(model_of(module).forward).parameters:
        return False
    routes = given.get("output_router_logits")
    routes = getattr(config, "output_router_logits", False) if routes is None else routes
    return not is_causal(module) or bool(routes)


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
    model, config = model_of(module), config_of(module)
    is_classifier = type(model).__name__.endswith("ForSequenceClassification")
    if config is None or not is_classifier or not is_causal(module):
        return
    if "inputs_embeds" in names:
        raise OptionError(
            f"{type(model).__name__} reads the last position of inputs_embeds, which would be "
            "padding; pass input_ids instead"
        )
    if "input_ids" in names and getattr(config, "pad_token_id", None) is None:
        raise OptionError(
            f"{type(model).__name__} reads the last token that is not padding, so planned sizes "
            "need config.pad_token_id; set it to the token that pads"
        )


def order_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """Return the dimensions of a tensor from the largest stride to the smallest."""
    return tuple(sorted(range(tensor.ndim), key=lambda d: (-tensor.stride(d), d)))


def strides_of(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a dense tensor whose dimensions have this order."""
    found, step = [0] * len(shape), 1
    for dimension in reversed(order):
        found[dimension] = step
        step *= max(1, shape[dimension])
    return tuple(found)


def is_laid_out(tensor: torch.Tensor, shape: Sequence[int], order: Sequence[int]) -> bool:
    """Return whether a tensor has a shape, and the strides and offset of a new one."""
    is_new = tensor.stride() == strides_of(shape, order) and tensor.storage_offset() == 0
    return is_new and tuple(tensor.shape) == tuple(shape)


def padded(
    tensor: torch.Tensor, shape: Sequence[int], number: float, order: Sequence[int]
) -> torch.Tensor:
    """Return a new tensor with a shape whose first elements are those of another one."""
    found = tensor.new_empty_strided(tuple(shape), strides_of(shape, order))
    if tuple(tensor.shape) != tuple(shape):
        found.fill_(number)
    found[tuple(map(slice, tensor.shape))].copy_(tensor)
    return found
