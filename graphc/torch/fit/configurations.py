"""Modules on the meta device from configurations of transformers and diffusers, with arguments."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from graphc.errors import OptionError, did_you_mean, or_all, quoted
from graphc.torch.budget.trace.without_data import Call
from graphc.torch.fit.flash import NAME, register_flash
from graphc.torch.fit.models import Sizes, Source, building, library_of, refuse_attention

TRAINERS = "adamw-fused"
"""The default optimizer of the Trainer of transformers."""

MOST_TOKENS = 1024
"""The default length of a sequence, unless the model has a lower limit."""


def from_config(path: Path, task: str | None = None) -> Source:
    """Return the source of a ``config.json`` of transformers or diffusers, or of its directory.

    Without a task, it is that of the class in ``architectures``; if that has no head, the first of
    `TASKS` for which transformers has a class. Raises `OptionError` for unknown configurations and
    tasks.
    """
    file = path / "config.json" if path.is_dir() else path
    try:
        config = json.loads(file.read_text(), object_hook=_with_floats)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise OptionError(f"{quoted(str(file))} is not a configuration: {error}") from None
    if not isinstance(config, dict):
        raise OptionError(f"{quoted(str(file))} must be a JSON object, got {quoted(config)}")
    if "_class_name" in config:
        return _denoiser(config)
    transformers = library_of("transformers")
    transformers.utils.logging.set_verbosity_error()  # it warns about parts of configurations
    kinds = transformers.CONFIG_MAPPING.keys()
    kind = config.get("model_type")
    if kind not in kinds:
        raise OptionError(
            f"{quoted(str(file))} has the model_type {quoted(kind)}, which transformers does not "
            f"know{did_you_mean(kind, kinds, before='; ')}"
        )
    if task is not None and task not in TASKS:
        raise OptionError(f"unknown task {quoted(task)}; {or_all(task, TASKS)}")
    try:
        made = transformers.AutoConfig.for_model(**config)
    except Exception as error:  # each configuration checks its own entries
        text = (str(error).strip().splitlines() or [""])[0]
        raise OptionError(f"{file.name}: {type(error).__name__}: {text}") from error
    made.architectures = getattr(made, "architectures", None) or []  # None fails where classes vary
    task = _task_of(made, task, file.name)
    auto, inputs = TASKS[task]
    if getattr(made, "is_encoder_decoder", False):
        # Configurations of newer versions keep it elsewhere. Its value changes no bytes.
        made.decoder_start_token_id = getattr(made, "decoder_start_token_id", None) or 0

    def source(sizes: Sizes) -> Call:
        # By default, transformers selects sdpa, or eager for models without it.
        attention = {"auto": None, "flash": NAME}.get(sizes.attention, sizes.attention)
        if attention == NAME:
            register_flash()
        with building(file.name):
            from transformers.initialization import no_init_weights

            with no_init_weights():
                module = getattr(transformers, auto).from_config(
                    made, dtype=sizes.dtype, attn_implementation=attention
                )
                module.tie_weights()  # as skipped initialization would
            if sizes.attention == "flash" and not module._supports_flash_attn:
                raise OptionError(
                    f"{type(module).__name__} has no flash attention; omit --attention flash"
                )
            if task == "causal-lm" and getattr(module, "loss_type", "") is None:
                module.loss_type = "ForCausalLM"  # the default, of which it would warn
            return module.train(), None, (), inputs(made, sizes)

    stored = config.get("dtype", config.get("torch_dtype"))
    ignored = {}
    if stored:
        ignored["dtype"] = str(stored)
    if config.get("quantization_config"):
        ignored["quantization_config"] = "weights are counted whole"
    if inputs not in (_tokens, _labeled):
        return Source(source, ignored=ignored, optimizer=TRAINERS, task=task)
    most = longest(made)
    seq = min(MOST_TOKENS, most or MOST_TOKENS)
    return Source(source, seq, most, ignored=ignored, optimizer=TRAINERS, task=task)


def _task_of(config: Any, asked: str | None, name: str) -> str:
    """Return the task of a configuration of transformers: the one asked for, or its own.

    Raises `OptionError` if transformers has no class for it.
    """
    known = [
        task for task, (auto, _) in TASKS.items()
        if type(config) in getattr(library_of("transformers"), auto)._model_mapping
    ]  # fmt: skip
    if asked is None:
        own = _own_tasks(config, name)
        asked = next((task for task in (known if own is None else own) if task in known), None)
    if asked not in known:
        told = f"--task {asked}" if asked else "the task of its class"
        choice = f"choose --task {' or '.join(known)}" if known else "give file.py:function"
        raise OptionError(
            f"{name}: graphc fit has no step for {config.model_type} and {told}; {choice}"
        )
    return asked


def _own_tasks(config: Any, name: str) -> list[str] | None:
    """Return the tasks of the classes in ``architectures``; None if these have no head.

    A head that is not in `ENDINGS` has no task.
    """
    written = getattr(config, "architectures", None) or []
    if not isinstance(written, list) or not all(isinstance(each, str) for each in written):
        raise OptionError(f"{name}: architectures must be a list of names, got {quoted(written)}")
    heads = [each for each in written if re.search("For[A-Z]|LMHeadModel$", each)]
    ends = [tasks for each in heads for end, tasks in ENDINGS.items() if each.endswith(end)]
    return [task for tasks in ends for task in tasks] if heads else None


def _denoiser(config: Mapping[str, Any]) -> Source:
    """Return the source of a U-Net of diffusers that learns to predict noise."""
    name = config["_class_name"]
    if name not in ("UNet2DModel", "UNet2DConditionModel"):
        raise OptionError(
            f"the class {quoted(name)} of diffusers is not supported; choose UNet2DModel or "
            "UNet2DConditionModel, or give file.py:function"
        )

    def source(sizes: Sizes) -> Call:
        refuse_attention(sizes, name)
        diffusers = library_of("diffusers")
        diffusers.utils.logging.set_verbosity_error()  # it warns about dtypes of modules
        kind = {"dtype": sizes.dtype}
        with building(name):
            module = getattr(diffusers, name).from_config(dict(config)).train().to(sizes.dtype)
            made, batch = module.config, sizes.batch
            latent = made.in_channels == 4  # an autoencoder has divided the image by 8
            side = made.sample_size if sizes.image is None else sizes.image // (8 if latent else 1)
            if side is None:
                raise OptionError(f"the {name} has no sample_size; give the side as --image")
            x = torch.empty(batch, made.in_channels, side, side, **kind)
            given: dict[str, Any] = {"timestep": torch.empty(batch, dtype=torch.long)}
            if name == "UNet2DConditionModel":
                width = made.cross_attention_dim
                given["encoder_hidden_states"] = torch.empty(batch, sizes.seq or 77, width, **kind)
            if made.get("addition_embed_type") == "text_time":
                times = made.addition_time_embed_dim
                width = made.projection_class_embeddings_input_dim - 6 * times
                text, ids = torch.empty(batch, width, **kind), torch.empty(batch, 6, **kind)
                given["added_cond_kwargs"] = {"text_embeds": text, "time_ids": ids}
        return module, _noise_loss, (x, torch.empty_like(x)), given

    return Source(source)


def _noise_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(output.sample, target)


def _tokens(config: Any, sizes: Sizes) -> dict[str, Any]:
    x = _ids(sizes.batch, _length(config, sizes))
    return {"input_ids": x, "labels": _ids(*x.shape)}


def _labeled(config: Any, sizes: Sizes) -> dict[str, Any]:
    return {**_tokens(config, sizes), "labels": _ids(sizes.batch)}


def _images(config: Any, sizes: Sizes) -> dict[str, Any]:
    side = sizes.image or getattr(config, "image_size", None) or 224
    height, width = side if isinstance(side, list | tuple) else (side, side)
    channels = getattr(config, "num_channels", 3)
    pixels = torch.empty(sizes.batch, channels, height, width, dtype=sizes.dtype)
    return {"pixel_values": pixels, "labels": _ids(sizes.batch)}


def _speech(config: Any, sizes: Sizes) -> dict[str, Any]:
    frames = 2 * config.max_source_positions
    features = torch.empty(sizes.batch, config.num_mel_bins, frames, dtype=sizes.dtype)
    most = config.max_target_positions
    return {"input_features": features, "labels": _ids(sizes.batch, min(sizes.seq or most, most))}


def _ids(*shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=torch.long)


def _length(config: Any, sizes: Sizes) -> int:
    most = longest(config)
    if sizes.seq is None:
        return min(MOST_TOKENS, most or MOST_TOKENS)
    if most is not None and sizes.seq > most:
        raise OptionError(f"--seq {sizes.seq} exceeds the {most} positions of the configuration")
    return sizes.seq


def _with_floats(given: dict[str, Any]) -> Any:
    """Return the number of an object such as ``{"__float__": "Infinity"}``, as transformers writes
    them, and other objects unchanged."""
    return float(given["__float__"]) if given.keys() == {"__float__"} else given


AFTER_PADDING = {
    "camembert", "data2vec-text", "esm", "ibert", "layoutlmv3", "lilt", "longformer", "luke",
    "markuplm", "mpnet", "roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod",
}  # fmt: skip
"""Types of models whose first position follows that of padding."""


def longest(config: Any) -> int | None:
    """Return the most tokens of a configuration of transformers; None if it has no limit."""
    most: int | None = getattr(config, "max_position_embeddings", None)
    if most is None or getattr(config, "model_type", "") not in AFTER_PADDING:
        return most
    return most - (config.pad_token_id or 0) - 1


TASKS: dict[str, tuple[str, Callable[[Any, Sizes], dict[str, Any]]]] = {
    "causal-lm": ("AutoModelForCausalLM", _tokens),
    "masked-lm": ("AutoModelForMaskedLM", _tokens),
    "seq2seq-lm": ("AutoModelForSeq2SeqLM", _tokens),
    "sequence-classification": ("AutoModelForSequenceClassification", _labeled),
    "token-classification": ("AutoModelForTokenClassification", _tokens),
    "image-classification": ("AutoModelForImageClassification", _images),
    "speech-seq2seq": ("AutoModelForSpeechSeq2Seq", _speech),
}
"""The class of transformers for each task, and a function that returns its arguments."""


ENDINGS = {
    "ForCausalLM": ["causal-lm"], "LMHeadModel": ["causal-lm"], "ForMaskedLM": ["masked-lm"],
    "ForSequenceClassification": ["sequence-classification"],
    "ForTokenClassification": ["token-classification"],
    "ForImageClassification": ["image-classification"], "ForSpeechSeq2Seq": ["speech-seq2seq"],
    "ForConditionalGeneration": ["seq2seq-lm", "speech-seq2seq"],
}  # fmt: skip
"""Ends of the names of classes, and the tasks that they may have."""
