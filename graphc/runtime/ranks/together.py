"""Coordination of the ranks of a program: checks of equal plans, writing of files, GPUs."""

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
"""Status messages of rank 0 about its work; any other message is the text of an error."""

GOLDEN = 0x9E3779B9
"""2^32 divided by the golden ratio. A rank is multiplied by it to get its seed mask, which spreads
small ranks over all bits of a word."""


def ranks_of(plan: MemoryPlan) -> int:
    """Return the number of ranks that a plan is for, which its collectives state.

    Raises `RanksError` if its collectives differ in their number of ranks.
    """
    found = {int(node.attributes.ranks): node.label for node in plan.graph.nodes if node.op.sends}
    if len(found) > 1:
        (one, label), (other, other_label), *_ = sorted(found.items())
        raise RanksError(
            f"{label} has {one} ranks, but {other_label} has {other}; all collectives of a plan "
            "must have the same number of ranks"
        )
    return next(iter(found), 1)


def lane_of(plan: MemoryPlan, seed: int, lane: Lane | None) -> Lane:
    """Return the queue of collectives for a plan: `lane`, or by default that of this process.

    Raises `RanksError` if the number of ranks is not that of the plan, or if ranks differ in plan,
    seed or time limit.
    """
    ranks = ranks_of(plan)
    if ranks == 1:
        return ALONE
    lane = lane or world_lane()
    if lane.wire.size != ranks:
        raise RanksError(
            f"the plan is for {ranks} ranks, but this is rank {lane.wire.rank} of "
            f"{lane.wire.size}; start {ranks} processes, for example with mpirun -n {ranks}, or "
            f"plan with ranks={lane.wire.size}"
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
            "rank 0; start all ranks with the same network, options and version of graphc"
        )


def of_rank(rank: int, state: State, given: Array) -> Array:
    """Convert a state between its value on a rank and its value on rank 0.

    The conversion is an XOR, and so its own inverse. Only the seed of random ops differs between
    ranks, so that each rank draws different bits. Files store the value of rank 0.
    """
    if rank == 0 or not hasattr(state.initial, "kind") or state.initial.kind != "seed":
        return given
    mask = np.array([0, rank * GOLDEN & 0xFFFFFFFF], given.dtype)
    own: Array = np.bitwise_xor(given, mask)
    return own


def by_rank_0(lane: Lane, work: Callable[[], object]) -> None:
    """Call `work` on rank 0 while the other ranks wait until it ends.

    If it raises, the other ranks raise `RanksError`.
    """
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
        raise RanksError(f"rank 0 failed: {told.decode()}")


def _told_meanwhile(lane: Lane, work: Callable[[], object]) -> None:
    """Call `work`, and send the other ranks its status every quarter of the time limit.

    So the waiting ranks do not time out. The last message reports success, or the text of an error.
    """
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
    """Connect the GPU of this rank with those of all other ranks by NCCL.

    `gpu` identifies the GPU uniquely, and `active` makes it the current device of a thread. Raises
    `RanksError`, also if two ranks have the same GPU.
    """
    rank, size = lane.wire.rank, lane.wire.size
    own = gpu.encode()
    told = lane.run("the comparison of GPUs", lambda: lane.wire.tell(own))
    first: dict[bytes, int] = {}
    for number, each in enumerate(told):
        if first.setdefault(each, number) != number:
            raise RanksError(
                f"ranks {first[each]} and {number} use the same GPU; start at most one rank per GPU"
            )

    def connected() -> Communicator:
        identity = lane.wire.tell(nccl.new_identity() if rank == 0 else b"")[0]
        with active():
            return nccl.connected(identity, rank, size, lane.time_limit)

    return lane.run("the connection of GPUs", connected)
