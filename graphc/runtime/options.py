"""Options of execution, such as threads and checks. Each option is defined once, here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from graphc.devices.device import MOST_THREADS
from graphc.errors import (
    OptionError,
    check_seed,
    number_between,
    quoted,
    truth,
    whole_number,
)
from graphc.keywords import Flag, Options, option
from graphc.runtime.program import Program
from graphc.runtime.ranks.lane import LONGEST_TIMEOUT, RANK_TIMEOUT, SHORTEST_TIMEOUT


def _check_cudnn(name: str, given: object) -> None:
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        truth(name, given, ", None, or the path of a file")


def _path_or_none(name: str, given: object) -> None:
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        raise OptionError(f"{name} must be the path of a file, or None, got {quoted(given)}")


def _check_program(name: str, given: object) -> None:
    if not isinstance(given, Program):
        raise OptionError(f"{name} must be a program of graphc.compile, got {quoted(given)}")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of execution."""

    cuda_graph: bool = option(True, "On a GPU, capture a step as a CUDA graph and replay it.")
    cudnn: bool | str | os.PathLike[str] | None = option(
        None,
        "On a GPU, use cuDNN for convolutions and 16-bit attention; None does so if it is "
        "installed. A path names a file that records the chosen engines, so that later runs use "
        "the same ones.",
        check=_check_cudnn,
    )
    deterministic: bool = option(
        True,
        "On a GPU, let cuDNN use only deterministic engines. False also allows others, which may "
        "be faster or need less workspace, but whose results differ between runs.",
    )
    tuning: str | os.PathLike[str] | None = option(
        None,
        "On a GPU, a file that records the algorithms that cuBLASLt chose for products, so that "
        "later runs give identical results.",
        check=_path_or_none,
    )
    threads: int | None = option(
        None,
        "The number of threads of native kernels on a CPU; None uses one per processor.",
        check=partial(whole_number, most=MOST_THREADS),
        flag=Flag("threads of native kernels (default: {default})", unset="all", parse=int),
    )
    rank_timeout: float = option(
        RANK_TIMEOUT,
        "The seconds that a rank waits for the others before it raises `RanksError`; on a GPU, "
        "the seconds that a step may take.",
        check=partial(number_between, low=SHORTEST_TIMEOUT, high=LONGEST_TIMEOUT),
        flag=Flag(
            "seconds that a rank waits for the others (default: {default})",
            metavar="S",
            parse=float,
        ),
    )
    states: Program | None = option(
        None,
        "A program on the same device whose states this one uses without a copy, such as the "
        "training program of a network for its evaluation. Its steps must not update them.",
        check=_check_program,
    )
    seed: int = option(
        0,
        "The seed of initial parameters and random ops.",
        check=lambda _, given: check_seed(given),
        flag=Flag("seed of parameters, batch order and random ops", parse=int),
    )
    poison: bool = option(
        False,
        "For debugging: fills bytes without a live value with NaN, which exposes a wrong plan.",
    )
    check_finite: bool = option(
        False,
        "For debugging: a step that computes NaN or infinity raises `NonFiniteError`, which names "
        "the op, and leaves all states unchanged.",
        flag=Flag(
            "end at the first op that computes NaN or infinity, and name it; slow",
            action="store_true",
        ),
    )
