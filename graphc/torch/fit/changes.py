"""Changes of the options of a step that make it fit a device, cheapest first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import combinations

import torch

from graphc.errors import GraphcError
from graphc.torch.fit.optimizers import state_sizes
from graphc.torch.fit.options import Lora
from graphc.torch.fit.parameters import parameters_of
from graphc.torch.fit.step import Prediction, Request, call_of, predict, with_options

MOST = 3
"""The number of changes that are returned."""

RANKS = (2, 4, 8)
ADAPTER = Lora(16)


@dataclass(frozen=True)
class Change:
    """Options to add to the command, the step with them, and its time relative to the original."""

    flags: str
    prediction: Prediction
    extra_time: float


def cheapest(request: Request, found: Prediction) -> list[Change]:
    """Return the fastest changes within the capacity by modeled time, at most `MOST`.

    Single changes are tried first, then pairs. Changes that train the same parameters come before
    those that train adapters, and these before several ranks.
    """
    capacity = request.memory.usable_bytes
    alone = [(flags, changed) for group in _groups(request) for flags, changed in group]
    fitting: list[Change] = []
    for candidates in (alone, list(_pairs(request))):
        for flags, changed in candidates:
            with suppress(GraphcError):
                if least_bytes(changed) <= capacity:
                    step = predict(changed)
                    if step.needed_bytes <= capacity:
                        steps = changed.options.accumulate / request.options.accumulate
                        extra = steps * step.seconds / found.seconds - 1
                        fitting.append(Change(flags, step, extra))
        if fitting:
            break
    return sorted(fitting, key=lambda each: _rank(each.flags, each.extra_time))[:MOST]


def _rank(flags: str, extra_time: float) -> tuple[int, float]:
    return ("--lora" in flags) + 2 * ("--ranks" in flags), extra_time


def _pairs(request: Request) -> Iterator[tuple[str, Request]]:
    """Yield two changes at once, of different kinds."""
    for first, second in combinations(range(len(list(_groups(request)))), 2):
        for flags, changed in list(_groups(request))[first]:
            for more, both in list(_groups(changed))[second]:
                yield f"{flags} {more}", both


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
    narrow = replace(sizes, dtype=torch.bfloat16)
    is_wide = sizes.dtype == torch.float32
    yield [("--dtype bfloat16", replace(request, sizes=narrow, autocast=None))] if is_wide else []
    is_adam = options.optimizer in ("adam", "adamw")
    small = with_options(request, optimizer="adam8bit")
    yield [("--optimizer adam8bit", small)] if is_adam else []
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


def least_bytes(request: Request) -> int:
    """Return a lower bound on the bytes of a step: parameters and optimizer states."""
    parameters = parameters_of(call_of(request)[0])
    whole = sum(each.size_bytes for each in parameters)
    return (whole + sum(state_sizes(request.options.optimizer, parameters))) // (
        request.options.ranks
    )
