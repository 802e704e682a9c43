"""The fastest backward pass of a part of a chain with recomputation alone: rotor's dynamic program.

Beaumont, Eyraud-Dubois, Herrmann, Joly and Shilova, "Optimal checkpointing for heterogeneous
chains: how to train deep neural networks with limited memory" (2019). The least seconds T(i, j, m)
of F_i ... F_j and B_j ... B_i within m bytes beside the input of stage i are the least of

    f_i + T(i + 1, j, m - whole_i) + b_i                                keep all that stage i saves
    f_i + ... + f_(p-1) + T(p, j, m - activation_(p-1)) + T(i, p - 1, m)    keep the input of p

if the bytes of each F and B fit. The gradient of the activation of stage j counts within m. Bytes
are rounded up to a grid of `slots` steps. An F always computes what its stage saves, which counts
while it runs: the paper has an F without it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from chains import Chain


class Rotor:
    """T for all parts of a chain. `seconds[i, j, slot]` is infinite if the part does not fit."""

    def __init__(self, chain: Chain, budget: int, slots: int) -> None:
        self.chain, self.slots = chain, slots
        self.unit = max(1.0, budget / slots)
        self.forward = np.concatenate([[0.0], np.cumsum(chain.forward)])
        count = len(chain)
        self.seconds = np.full((count, count, slots + 1), math.inf)
        for length in range(count):
            for first in range(count - length):
                last = first + length
                for _, _, seconds in self._choices(first, last):
                    table = self.seconds[first, last]
                    np.minimum(table, seconds, out=table)

    def within(self, size: np.ndarray) -> np.ndarray:
        """Return the slots of numbers of bytes, -1 below none, and at most the last."""
        return np.clip(np.floor(size / self.unit), -1, self.slots).astype(np.int64)

    def sequence(self, first: int, last: int, slot: int) -> list[int]:
        """Return the nodes of the fastest pass of stages `first` to `last` within a slot."""
        kept, split, found = min(self._choices(first, last), key=lambda choice: choice[2][slot])
        assert found[slot] < math.inf, "the part fits"
        chain = self.chain
        if kept is None:
            backward = chain.backward_node(first)
            if first == last:
                return [first, backward]
            inner = self.sequence(first + 1, last, slot - self._slots(chain.whole[first]))
            return [first, *inner, backward]
        later = self.sequence(split, last, slot - self._slots(kept))
        return [*range(first, split), *later, *self.sequence(first, split - 1, slot)]

    def _choices(self, first: int, last: int) -> Iterator[tuple[int | None, int, np.ndarray]]:
        """Yield the bytes kept (None for all of the first stage), the split and the seconds by
        slot."""
        chain, gradient = self.chain, self.chain.gradient[last]
        need = max(gradient + chain.forward_bytes[first], chain.backward_bytes[first])
        own = chain.forward[first] + chain.backward[first]
        if first == last:
            yield None, first + 1, self._limited(np.full(self.slots + 1, float(own)), need)
            return
        inner = self._shifted(self.seconds[first + 1, last], chain.whole[first])
        yield None, first + 1, self._limited(own + inner, need)
        need = 0
        for split in range(first + 1, last + 1):
            stage = split - 1
            reads = chain.input_bytes(stage) if stage > first else 0
            need = max(need, gradient + reads + chain.forward_bytes[stage])
            kept = chain.activation[stage]
            later = self._shifted(self.seconds[split, last], kept)
            again = self.forward[split] - self.forward[first]
            yield kept, split, self._limited(again + later + self.seconds[first, stage], need)

    def _slots(self, size: int) -> int:
        return math.ceil(size / self.unit)

    def _shifted(self, seconds: np.ndarray, size: int) -> np.ndarray:
        by = min(self._slots(size), self.slots + 1)
        return np.concatenate([np.full(by, math.inf), seconds[: self.slots + 1 - by]])

    def _limited(self, seconds: np.ndarray, need: int) -> np.ndarray:
        seconds[: min(self._slots(need), self.slots + 1)] = math.inf
        return seconds
