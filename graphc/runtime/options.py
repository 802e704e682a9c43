"""The options of execution, which say how the steps of a plan run. Each is defined once, here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial

from graphc.errors import (
    OptionError,
    check_seed,
    number_between,
    quoted,
    truth,
    whole_number,
)
from graphc.ir.device import MOST_THREADS
from graphc.keywords import Flag, Options, option

RANK_TIMEOUT = 60.0
"""The default seconds that a rank waits for the others."""

SHORTEST_TIMEOUT, LONGEST_TIMEOUT = 1e-3, 1e6
"""The least and the largest time limit in seconds; the largest is over eleven days."""


def _check_cudnn(name: str, given: object) -> None:
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        truth(name, given, ", None, or the path of a file")


def _path_or_none(name: str, given: object) -> None:
    if given is not None and not (isinstance(given, str | os.PathLike) and os.fspath(given)):
        raise OptionError(f"{name} is the path of a file, or None, got {quoted(given)}")


@dataclass(frozen=True, kw_only=True)
class RunOptions(Options):
    """The options of execution."""

    cuda_graph: bool = option(True, "On a GPU, capture a step as a CUDA graph and replay it.")
    cudnn: bool | str | os.PathLike[str] | None = option(
        None,
        "On a GPU, let cuDNN do convolutions and 16-bit attention; None does so where it is "
        "installed. A path names a file that keeps which engines it chose, so that a later run has "
        "the same ones.",
        check=_check_cudnn,
    )
    deterministic: bool = option(
        True,
        "On a GPU, let cuDNN use only engines that sum in one order. False allows others, which "
        "may be faster or need less workspace; bits then differ from run to run.",
    )
    tuning: str | os.PathLike[str] | None = option(
        None,
        "On a GPU, a file that keeps which algorithms cuBLASLt chose for products, so that a later "
        "run has the same ones, and their bits.",
        check=_path_or_none,
    )
    threads: int | None = option(
        None,
        "On a CPU, how many threads run native kernels; None takes one for each processor.",
        check=partial(whole_number, most=MOST_THREADS),
        flag=Flag("threads of native kernels (default: {default})", unset="all", parse=int),
    )
    rank_timeout: float = option(
        RANK_TIMEOUT,
        "How many seconds a rank waits for the others before it raises `RanksError`; on a GPU, for "
        "a step to end.",
        check=partial(number_between, low=SHORTEST_TIMEOUT, high=LONGEST_TIMEOUT),
        flag=Flag(
            "seconds that a rank waits for the others (default: {default})",
            metavar="S",
            parse=float,
        ),
    )
    seed: int = option(
        0,
        "Fixes the initial parameters, and what random ops draw.",
        check=lambda _, given: check_seed(given),
        flag=Flag("parameters, order and masks", parse=int),
    )
    poison: bool = option(
        False,
        "For debugging: every byte is NaN while no value lives there, so that a wrong plan shows.",
    )
    check_finite: bool = option(
        False,
        "For debugging: a step that meets NaN or infinity raises `NonFiniteError` and leaves all "
        "states as they were.",
    )
