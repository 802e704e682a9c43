"""What the ranks of a program agree on: that they run the same plan, and who writes a file."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphc.errors import RanksError
from graphc.ir.graph import State
from graphc.plans.json_form import checksum, plan_object
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.ranks.lane import ALONE, Lane
from graphc.runtime.ranks.world import world_lane

if TYPE_CHECKING:
    from graphc.runtime.gpu.nccl import Communicator, Nccl

Array = np.ndarray[Any, np.dtype[Any]]

UNDER_WAY, DONE = b"\x00", b"\x01"
"""What rank 0 tells of its work; else it is an error's text."""

GOLDEN = 0x9E3779B9
"""What a rank's number is multiplied with, so that all bits of a seed change."""


def ranks_of(plan: MemoryPlan) -> int:
    """How many ranks a plan is for: as many as its collectives are between.

    Raises `RanksError` where those are not between as many.
    """
    found = {int(node.attributes.ranks): node.label for node in plan.graph.nodes if node.op.sends}
    if len(found) > 1:
        (one, label), (other, other_label), *_ = sorted(found.items())
        raise RanksError(
            f"{label} is between {one} ranks and {other_label} between {other}; the collectives of "
            "a plan are between all ranks of a program, so give them the same number"
        )
    return next(iter(found), 1)


def lane_of(plan: MemoryPlan, seed: int, lane: Lane | None) -> Lane:
    """The lane for a plan: the one given, or that of the processes which were started together.

    Raises `RanksError` where there are more or fewer ranks than the plan is for, and where not all
    have the same plan, seed and time limit.
    """
    ranks = ranks_of(plan)
    if ranks == 1:
        return ALONE
    lane = lane or world_lane()
    if lane.wire.size != ranks:
        raise RanksError(
            f"the plan is for {ranks} ranks, and this is rank {lane.wire.rank} of "
            f"{lane.wire.size}; start {ranks} processes, as mpirun -n {ranks} does, or plan with "
            f"ranks={lane.wire.size}"
        )
    _check_same(lane, plan, seed)
    return lane


def _check_same(lane: Lane, plan: MemoryPlan, seed: int) -> None:
    agreed = f"{seed}\n{lane.time_limit}\n{checksum(plan_object(plan))}"
    own = hashlib.sha256(agreed.encode()).digest()
    told = lane.run("the comparison of plans", lambda: lane.wire.tell(own))
    others = [rank for rank, digest in enumerate(told) if digest != told[0]]
    if others:
        raise RanksError(
            f"ranks {', '.join(map(str, others))} have another plan, seed or rank_timeout than "
            "rank 0; start all with the same network, options and version of graphc"
        )


def of_rank(rank: int, state: State, given: Array) -> Array:
    """What a rank has for a state that others have as given, or the other way round.

    Only the seed of random ops differs, so that each rank draws bits of its own; what is saved is
    that of rank 0.
    """
    if rank == 0 or not hasattr(state.initial, "kind") or state.initial.kind != "seed":
        return given
    mask = np.array([0, rank * GOLDEN & 0xFFFFFFFF], given.dtype)
    own: Array = np.bitwise_xor(given, mask)
    return own


def by_rank_0(lane: Lane, work: Callable[[], object]) -> None:
    """Do something on rank 0, while the others wait until it is done; what it raises is raised on
    all."""
    if lane.wire.size == 1:
        work()
        return
    if lane.wire.rank == 0:
        _told_meanwhile(lane, work)
        return
    told = UNDER_WAY
    while told == UNDER_WAY:
        told = lane.run("writing a file", partial(lane.wire.tell, b""))[0]
    if told != DONE:
        raise RanksError(f"rank 0 could not do its part: {told.decode()}")


def _told_meanwhile(lane: Lane, work: Callable[[], object]) -> None:
    """Do something, and tell the others time and again that it is under way, however long it takes;
    then how it ended."""
    ended, own = threading.Event(), DONE

    def tell() -> None:
        while not ended.wait(lane.time_limit / 4):
            lane.wire.tell(UNDER_WAY)
        lane.wire.tell(own)

    told = lane.start("writing a file", tell)
    error: BaseException | None = None
    try:
        work()
    except BaseException as caught:
        error, own = caught, f"{type(caught).__name__}: {caught}".encode()
    finally:
        ended.set()
    told()
    if error is not None:
        raise error


def connected_gpus(
    lane: Lane, nccl: Nccl, gpu: str, active: Callable[[], AbstractContextManager[Any]]
) -> Communicator:
    """This rank's GPU, known by a text of its own, connected with those of all others;
    `active` makes it that of a thread. Raises `RanksError`, also where two ranks have one."""
    rank, size = lane.wire.rank, lane.wire.size
    own = gpu.encode()
    told = lane.run("the comparison of GPUs", lambda: lane.wire.tell(own))
    first: dict[bytes, int] = {}
    for number, each in enumerate(told):
        if first.setdefault(each, number) != number:
            raise RanksError(
                f"ranks {first[each]} and {number} have the same GPU; start as many ranks on a "
                "machine as it has GPUs"
            )

    def connected() -> Communicator:
        identity = lane.wire.tell(nccl.new_identity() if rank == 0 else b"")[0]
        with active():
            return nccl.connected(identity, rank, size, lane.time_limit)

    return lane.run("the meeting of GPUs", connected)
