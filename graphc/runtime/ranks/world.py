"""Detection of the rank of this process from its launcher, and its connection with other ranks.

`mpirun`, `srun` and `torchrun` set environment variables with the rank of each process and the
number of processes. `mpirun` and `srun` connect ranks by MPI, `torchrun` by PyTorch's gloo.
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from graphc.errors import DependencyError, RanksError, to_install
from graphc.runtime.ranks.lane import ALONE, Lane
from graphc.runtime.ranks.mpi import MpiWire
from graphc.runtime.ranks.wire import Wire

LAUNCHERS = {
    "mpirun of Open MPI": (
        "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
    ),
    "mpirun": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "srun": ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
}  # fmt: skip
"""Launcher → its variables for the rank of a process, the number of processes, and the local rank
within a machine."""


@dataclass(frozen=True, slots=True)
class World:
    """The rank of this process among the processes that were launched together."""

    rank: int = 0
    size: int = 1
    launcher: str = ""
    local_rank: int = 0
    """The rank among the processes of the same machine."""


def find_world(environment: Mapping[str, str] = os.environ) -> World:
    """Read the rank from the variables of the launcher; rank 0 of 1 without a launcher."""
    # Processes of torchrun inherit the variables of a batch system, so torchrun comes first.
    first = ["torchrun"] if "TORCHELASTIC_RUN_ID" in environment else []
    for launcher in (*first, *LAUNCHERS):
        names = LAUNCHERS[launcher]
        rank, size, local = (environment.get(name, "") for name in names)
        if rank.isdecimal() and size.isdecimal() and int(size) > 1:
            own = int(local) if local.isdecimal() else 0
            return World(int(rank), int(size), launcher, own)
    return World()


def end_all() -> None:
    """End all processes connected with this one, which would otherwise wait for it."""
    if world_lane.cache_info().currsize and (lane := world_lane()) is not ALONE:
        sys.stderr.flush()
        lane.wire.abort()


def _gloo() -> Wire:
    """Connect by PyTorch. The module is imported here so that the runtime does not need PyTorch."""
    try:
        gloo = importlib.import_module("graphc.torch.gloo")
    except ImportError as error:
        raise DependencyError(
            "ranks started by torchrun communicate through PyTorch, which cannot be imported "
            f"({error}); " + to_install("torch", "torch")
        ) from None
    wire: Wire = gloo.GlooWire()
    return wire


@functools.cache
def world_lane() -> Lane:
    """Return the lane of this process, which all its programs share; raises `RanksError`."""
    world = find_world()
    if world.size == 1:
        return ALONE
    wire: Wire = _gloo() if world.launcher == "torchrun" else MpiWire()
    if wire.size != world.size:
        raise RanksError(
            f"{world.launcher} started {world.size} processes, but MPI reports {wire.size}, so "
            "this MPI belongs to another launcher. Use the mpirun of the MPI library that mpi4py "
            "uses"
        )
    return Lane(wire)
