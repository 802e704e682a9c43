"""Options of a training step whose memory is predicted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import cast

from graphc.errors import OptionError, choose, did_you_mean, given_twice, quoted, whole_number
from graphc.keywords import Flag, Options, option

OPTIMIZERS = (
    "sgd", "momentum", "adam", "adam-fused", "adamw", "adamw-fused", "adafactor", "adam8bit",
    "muon", "lion",
)  # fmt: skip
SHARDS = ("ddp", "zero1", "zero2", "zero3")
MOST_RANK = 1 << 16
"""The maximum rank of an adapter."""
LORA_FORM = "r=16,targets=q_proj,v_proj"


@dataclass(frozen=True)
class Lora:
    """Low-rank adapters (Hu et al., 2021): their rank, and names of the modules that get one.

    Without targets, all linear layers except the output layer get one.
    """

    rank: int
    targets: tuple[str, ...] = ()


def parse_lora(text: str) -> Lora:
    """Return the adapters of a text such as ``r=16,targets=q_proj,v_proj``.

    Names after ``targets=`` continue up to the next option. Raises `OptionError` for any other
    text.
    """
    found: dict[str, list[str]] = {"r": [], "targets": []}
    key = ""
    for entry in text.split(","):
        name, is_named, value = (each.strip() for each in entry.partition("="))
        if is_named:
            key = name
        elif key == "targets":
            value = name
        else:
            raise OptionError(f"--lora: {quoted(entry)} has no name; write --lora {LORA_FORM}")
        if key not in found:
            near = did_you_mean(key, found, before="; ")
            raise OptionError(f"--lora has no option {quoted(key)}; it takes r and targets{near}")
        found[key].append(value)
    ranks, targets = found.values()
    if not ranks:
        raise OptionError(f"--lora {quoted(text)} has no rank; write --lora {LORA_FORM}")
    if len(ranks) > 1:
        raise OptionError(f"--lora: r {given_twice(*ranks[:2])}")
    if "" in targets:
        raise OptionError(f"--lora {quoted(text)} has an empty target; write --lora {LORA_FORM}")
    rank = whole_number("--lora r", _parse_number(ranks[0]), most=MOST_RANK)
    return Lora(rank, tuple(dict.fromkeys(targets)))


def _parse_number(text: str) -> object:
    """Return a number, or a text that the check of its option rejects."""
    return int(text) if text.isdecimal() else text


def _check_optimizer(name: str, given: object) -> None:
    if given != "":  # the default of the model
        choose(name, cast(str, given), OPTIMIZERS)


@dataclass(frozen=True, kw_only=True)
class FitOptions(Options):
    """The options of a training step that change its memory, but not the module."""

    optimizer: str = option(
        "",
        "The optimizer: one of {choices}. By default adamw-fused for a configuration of "
        "transformers, as in its Trainer, and adamw for others.",
        choices=OPTIMIZERS,
        check=_check_optimizer,
        flag=Flag(
            f"optimizer: {', '.join(OPTIMIZERS)} (default: adamw, for a configuration of "
            "transformers adamw-fused)",
            metavar="O",
        ),
    )
    lora: Lora | None = option(
        None,
        "Low-rank adapters to train instead of the module's parameters.",
        flag=Flag(
            f"train adapters of rank r on these modules, such as {LORA_FORM}; without targets, on "
            "all linear layers but the last",
            metavar="L",
            parse=parse_lora,
        ),
    )
    base: str | None = option(
        None,
        "The weights of linear layers below adapters: ``4bit`` is NF4 with double quantization, "
        "``8bit`` is LLM.int8(), both as in bitsandbytes.",
        choices=("4bit", "8bit"),
        flag=Flag("store the linear layers below adapters in {choices}", metavar="B"),
    )
    shard: str | None = option(
        None,
        "The distribution of the states of training over `ranks`: one of {choices}.",
        choices=SHARDS,
        flag=Flag("distribution over ranks: {choices}", metavar="S"),
    )
    ranks: int = option(
        1,
        "The number of ranks, each with its own batch.",
        check=partial(whole_number, most=1 << 20),
        flag=Flag("number of ranks (default: {default})", metavar="N", parse=_parse_number),
    )
    accumulate: int = option(
        1,
        "The number of micro-batches whose gradients are summed before an update.",
        check=whole_number,
        flag=Flag("micro-batches per step (default: {default})", metavar="K", parse=_parse_number),
    )
    chunked_loss: bool = option(
        False,
        "Compute the output layer and the cross entropy in chunks of rows.",
        flag=Flag(
            "compute the output layer and the cross entropy in chunks of rows",
            action="store_true",
        ),
    )
    attention: str = option(
        "auto",
        "The implementation of attention: one of {choices}. ``auto`` is that of transformers.",
        choices=("auto", "eager", "sdpa", "flash"),
        flag=Flag("implementation of attention: {choices} (default: {default})", metavar="A"),
    )
    checkpoint: str = option(
        "none",
        "The activations that are recomputed: one of {choices}. ``graphc`` is a plan of graphc.",
        choices=("none", "blocks", "graphc"),
        flag=Flag("recomputed activations: {choices} (default: {default})", metavar="C"),
    )

    def check(self) -> None:
        """Raise `OptionError` for invalid values, and for combinations without a meaning."""
        super().check()
        if self.base is not None and self.lora is None:
            raise OptionError(
                f"--base {self.base} leaves nothing to train, because its weights are frozen; "
                f"add --lora {LORA_FORM}"
            )
        if self.shard is None and self.ranks > 1:
            raise OptionError(
                f"--ranks {self.ranks} has no effect without --shard; add --shard ddp"
            )
        if self.shard is not None and self.checkpoint == "graphc":
            raise OptionError(
                f"--checkpoint graphc plans one rank with all parameters; omit --shard {self.shard}"
            )
        if self.shard is not None and self.ranks == 1:
            raise OptionError(f"--shard {self.shard} needs --ranks of at least 2, got 1")
