"""Changes of the options of a step that make it fit a device, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations, islice

import torch

from graphc.errors import GraphcError
from graphc.torch.fit.optimizers import state_sizes
from graphc.torch.fit.options import Lora
from graphc.torch.fit.parameters import parameters_of
from graphc.torch.fit.plans import PlannedPeaks
from graphc.torch.fit.step import Prediction, Request, call_of, predict, with_options

MOST = 3
"""The number of changes that are returned."""

TRIES = 8
"""The number of pairs of changes that are tried."""

PLAN = "--checkpoint graphc"
OTHER_OPTIMIZERS = {
    "adam": ("adam-fused", "adam8bit"),
    "adam-fused": ("adam8bit",),
    "adamw": ("adamw-fused", "adam8bit"),
    "adamw-fused": ("adam8bit",),
}
"""Optimizer → optimizers with the same rule that need fewer bytes."""
RANKS = (2, 4, 8)
FLOAT16 = "--dtype float32 --autocast float16"
ADAPTER = Lora(16)


@dataclass(frozen=True)
class Change:
    """Options to add to the command, the step with them, and its time relative to the original."""

    flags: str
    prediction: Prediction
    extra_time: float


def cheapest(
    request: Request, found: Prediction, planned: PlannedPeaks | None = None
) -> list[Change]:
    """Return the fastest changes that fit by modeled time, at most `MOST`.

    One of them may be graphc's plan, if it is given.
    If no single change fits, pairs of different kinds are tried, those with the largest savings
    first. Changes that train the same parameters come before those that train adapters. Several
    ranks are returned only if nothing fits on one.
    """
    supported, flags = with_supported_dtypes(request)
    if flags:  # instead of those of a step that the device does not support
        plain = predict(supported)
        more = [("", plain)]
        if plain.needed_bytes > request.memory.usable_bytes:
            more = [(f" {each.flags}", each.prediction) for each in cheapest(supported, plain)]
        return [Change(flags + flag, e, e.seconds / found.seconds - 1) for flag, e in more]
    groups = list(_groups(request))
    tried = [
        (number, Change(flags, step, step.seconds / found.seconds - 1))
        for number, group in enumerate(groups)
        for flags, changed in group
        if (step := _predicted(changed, request, found)) is not None
    ]
    if planned is not None:
        extra_time = planned.prediction.seconds / found.seconds - 1
        tried.append((0, Change(PLAN, planned.prediction, extra_time)))
    capacity = request.memory.usable_bytes
    fitting = [each for _, each in tried if each.prediction.needed_bytes <= capacity]
    on_one = [each for each in fitting if "--ranks" not in each.flags]
    if not on_one:
        alone = [each for each in tried if "--ranks" not in each[1].flags]
        on_one = list(islice(_pairs(request, found, alone), MOST))
    if not (on_one or fitting):
        fitting = list(islice(_pairs(request, found, tried), MOST))
    return sorted(on_one or fitting, key=lambda each: _rank(each.flags, each.extra_time))[:MOST]


def with_supported_dtypes(request: Request) -> tuple[Request, str]:
    """Return a request without bfloat16 if its device has none, and the options for it."""
    narrow = torch.bfloat16 in (request.sizes.dtype, request.autocast)
    if request.device.has_bfloat16 or not narrow:
        return request, ""
    sizes = replace(request.sizes, dtype=torch.float32)
    return replace(request, sizes=sizes, autocast=torch.float16), FLOAT16


def _predicted(changed: Request, request: Request, found: Prediction) -> Prediction | None:
    """Return the prediction of a changed request; None if it cannot fit, or has invalid options.

    Steps on more ranks are not recorded again.
    """
    shard, ranks = changed.options.shard, changed.options.ranks
    is_known = with_options(request, shard=shard, ranks=ranks) == changed
    with suppress(GraphcError):
        if least_bytes(changed, found) <= changed.memory.usable_bytes:
            return predict(changed, found.recorded if is_known else None)
    return None


def _rank(flags: str, extra_time: float) -> tuple[int, float]:
    return ("--lora" in flags) + 2 * ("--ranks" in flags), extra_time


def _pairs(
    request: Request, found: Prediction, tried: Sequence[tuple[int, Change]]
) -> Iterator[Change]:
    """Yield pairs of changes that fit, of the `TRIES` with the largest savings."""

    def needed(pair: tuple[tuple[int, Change], ...]) -> int:
        return sum(change.prediction.needed_bytes for _, change in pair)

    alone = [each for each in tried if each[1].flags != PLAN]
    pairs = (pair for pair in combinations(alone, 2) if pair[0][0] != pair[1][0])
    for (first, one), (second, other) in sorted(pairs, key=needed)[:TRIES]:
        changed = dict(list(_groups(request))[first])[one.flags]
        both = dict(list(_groups(changed))[second]).get(other.flags)
        step = None if both is None else _predicted(both, changed, one.prediction)
        if step is not None and step.needed_bytes <= request.memory.usable_bytes:
            extra = step.seconds / found.seconds - 1
            yield Change(f"{one.flags} {other.flags}", step, extra)


def _groups(request: Request) -> Iterator[list[tuple[str, Request]]]:
    """Yield changes by kind: recomputation, batch, precision, optimizer, adapters, ranks."""
    options, sizes = request.options, request.sizes
    changes = []
    if options.checkpoint == "none":
        changes.append(("--checkpoint blocks", with_options(request, checkpoint="blocks")))
    if not options.chunked_loss:
        changes.append(("--chunked-loss", with_options(request, chunked_loss=True)))
    yield changes
    half = replace(request, sizes=replace(sizes, batch=sizes.batch // 2))
    count = 2 * options.accumulate
    flags = f"--batch {sizes.batch // 2} --accumulate {count}"
    is_even = sizes.batch % 2 == 0
    yield [(flags, with_options(half, accumulate=count))] if is_even else []
    yield _narrower(request)
    names = OTHER_OPTIMIZERS.get(options.optimizer, ())
    yield [(f"--optimizer {name}", with_options(request, optimizer=name)) for name in names]
    flags = f"--lora r={ADAPTER.rank}"
    if options.lora is None:
        yield [
            (flags, with_options(request, lora=ADAPTER)),
            (f"{flags} --base 4bit", with_options(request, lora=ADAPTER, base="4bit")),
        ]
    else:
        is_whole = options.base is None
        yield [("--base 4bit", with_options(request, base="4bit"))] if is_whole else []
    yield [
        (f"--shard zero3 --ranks {count}", with_options(request, shard="zero3", ranks=count))
        for count in RANKS
        if options.shard is None
    ]


def _narrower(request: Request) -> list[tuple[str, Request]]:
    """Return the change to 16 bits: parameters in bfloat16, or autocast to float16 on a GPU without
    bfloat16, as gradients of parameters in float16 underflow."""
    if request.sizes.dtype != torch.float32:
        return []
    if request.device.has_bfloat16:
        narrow = replace(request.sizes, dtype=torch.bfloat16)
        return [("--dtype bfloat16", replace(request, sizes=narrow, autocast=None))]
    changed = replace(request, autocast=torch.float16)
    return [] if request.autocast else [("--autocast float16", changed)]


def least_bytes(request: Request, found: Prediction) -> int:
    """Return a lower bound on the bytes of a rank: parameters, gradients and optimizer states.

    If a trainable parameter gets no gradient in the step `found`, only parameters count.
    """
    parameters = parameters_of(call_of(request)[0])
    whole = sum(each.size_bytes for each in parameters)
    if found.recorded.recorder.trains_all:
        whole += sum(each.size_bytes for each in parameters if each.is_trainable)
        whole += sum(state_sizes(request.options.optimizer, parameters))
    return whole // request.options.ranks
