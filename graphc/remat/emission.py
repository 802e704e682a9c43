"""From the actions that the dynamic program chose to the steps that carry them out."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.remat.chain import Chain
from graphc.remat.chain_dp import Action, Split, Take


def emit(chain: Chain, actions: Sequence[Action]) -> list[int]:
    """The steps of a run that carry out the actions."""
    return _Emission(chain, actions).run()


class _Emission:
    """Carries out actions; `available` are the droppable values that are there at this place."""

    def __init__(self, chain: Chain, actions: Sequence[Action]) -> None:
        self.chain, self.steps = chain, chain.steps
        self.actions = iter(actions)
        self.available: set[int] = set()
        self.reached = chain.run.start
        self.sequence: list[int] = []

    def run(self) -> list[int]:
        # An explicit stack: chains nest deeper than Python's recursion. What is pushed last comes
        # first: the range behind a cut, then dropping what was kept for it, then the one before it.
        stack: list[tuple[str, int, int]] = [("range", 0, len(self.chain))]
        while stack:
            kind, first, stop = stack.pop()
            if kind == "back":
                self.backward(first, stop)
            elif kind == "drop":
                self.available.difference_update(self.chain.made(first, stop))
            else:
                action = next(self.actions)
                if isinstance(action, Take):
                    leaving = self.chain.crossing[action.stop]
                    self.forward(first, action.stop, action.option.saved | leaving)
                    # A region runs when all behind the span is done: gradients come from the last
                    # unit on.
                    stack.append(("back", first, action.stop))
                    if action.stop < stop:
                        stack.append(("range", action.stop, stop))
                elif isinstance(action, Split):
                    self.forward(first, action.cut, self.chain.crossing[action.cut])
                    stack.append(("range", first, action.cut))
                    # The program counts the front range from what crosses before it alone, so
                    # nothing else of it may be there when it begins.
                    stack.append(("drop", first, action.cut))
                    stack.append(("range", action.cut, stop))
                else:
                    self.backward(first, stop)
        return self.sequence

    def forward(self, first: int, stop: int, saved: frozenset[int]) -> None:
        """Run units: all steps for the first time, later only what `saved` takes."""
        end = self.chain.units[stop - 1].stop
        if end > self.reached:
            # For the first time every step runs, wanted again or not; but what it reads from before
            # may have been dropped.
            again = self.chain.needed(self.chain.crossing[first], self.available)
            self.sequence += again
            self.sequence += range(self.reached, end)
            self.reached = end
        else:
            self.sequence += self.chain.needed(saved, self.available)
        own = set(self.chain.made(first, stop))
        # All that was made and is not kept counts as dropped: liveness then frees it.
        self.available -= own - saved
        self.available |= own & saved

    def backward(self, first: int, stop: int) -> None:
        self.sequence += self.chain.lazily(self.chain.region(first, stop), self.available)
        self.available.difference_update(self.chain.made(first, stop))
