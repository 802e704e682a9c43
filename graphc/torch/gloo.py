"""Communication between ranks started by torchrun, through PyTorch's gloo backend."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as distributed

from graphc.errors import RanksError
from graphc.runtime.ranks.lane import LONGEST_TIMEOUT, RANK_TIMEOUT

Array = np.ndarray[Any, np.dtype[Any]]


class GlooWire:
    """The connection of a process to all other processes of one `torchrun`."""

    def __init__(self) -> None:
        to_meet = datetime.timedelta(seconds=RANK_TIMEOUT)
        to_talk = datetime.timedelta(seconds=LONGEST_TIMEOUT)  # the waiting code has its own limit
        try:
            if not distributed.is_initialized():
                distributed.init_process_group("gloo", timeout=to_meet)
            # A separate group, so that messages of the user cannot interfere.
            self._group = distributed.new_group(backend="gloo", timeout=to_talk)
        except (RuntimeError, ValueError) as error:
            raise RanksError(f"the processes of torchrun could not connect: {error}") from None
        self.rank, self.size = distributed.get_rank(), distributed.get_world_size()

    def exchange(
        self, sent: Array, starts: Sequence[int], lengths: Sequence[int], received: Array
    ) -> None:
        own = lengths[self.rank]
        begin = starts[self.rank]
        np.copyto(received[self.rank * own : (self.rank + 1) * own], sent[begin : begin + own])
        self._swap(
            {r: sent[starts[r] : starts[r] + lengths[r]] for r in range(self.size)},
            {r: received[r * own : (r + 1) * own] for r in range(self.size)},
        )

    def gather(self, whole: Array, starts: Sequence[int], lengths: Sequence[int]) -> None:
        parts = {r: whole[starts[r] : starts[r] + lengths[r]] for r in range(self.size)}
        self._swap(dict.fromkeys(range(self.size), parts[self.rank]), parts)

    def broadcast(self, whole: Array, root: int) -> None:
        if whole.size:
            distributed.broadcast(torch.from_numpy(whole), root, group=self._group)

    def tell(self, message: bytes) -> list[bytes]:
        found: list[Any] = [None] * self.size
        distributed.all_gather_object(found, message, group=self._group)
        return found

    def abort(self) -> None:
        """End this process; torchrun ends the others."""
        sys.stderr.flush()
        os._exit(1)

    def _swap(self, given: dict[int, Array], taken: dict[int, Array]) -> None:
        """Send each other rank its part of `given`, and receive its data into `taken`."""
        works = []
        for other in range(self.size):
            if other == self.rank:
                continue
            if taken[other].size:
                here = torch.from_numpy(taken[other])
                works.append(distributed.irecv(here, other, group=self._group))
            if given[other].size:
                there = torch.from_numpy(given[other])
                works.append(distributed.isend(there, other, group=self._group))
        for work in works:
            if work is not None:
                work.wait()
