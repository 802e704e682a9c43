"""Translation of the dynamic program's actions into a sequence of steps."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.planner.recompute.chain import Chain
from graphc.planner.recompute.chain_dp import Action, Split, Take


def emit(chain: Chain, actions: Sequence[Action]) -> list[int]:
    """Return the sequence of steps of a run that executes the actions."""
    return _Emission(chain, actions).run()


class _Emission:
    """Executor of actions; `available` holds the droppable values that are live at this point."""

    def __init__(self, chain: Chain, actions: Sequence[Action]) -> None:
        self.chain, self.steps = chain, chain.steps
        self.actions = iter(actions)
        self.available: set[int] = set()
        self.reached = chain.run.start
        self.sequence: list[int] = []

    def run(self) -> list[int]:
        # An explicit stack, since chains nest deeper than Python's recursion limit. Items pop in
        # reverse: the range after a cut, the drop of what was saved for it, the range before it.
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
                    # The region runs after all units and regions that follow the span, as
                    # gradients start at the last unit.
                    stack.append(("back", first, action.stop))
                    if action.stop < stop:
                        stack.append(("range", action.stop, stop))
                elif isinstance(action, Split):
                    self.forward(first, action.cut, self.chain.crossing[action.cut])
                    stack.append(("range", first, action.cut))
                    # The program assumes that the front range starts with only the values that
                    # cross the cut before it.
                    stack.append(("drop", first, action.cut))
                    stack.append(("range", action.cut, stop))
                else:
                    self.backward(first, stop)
        return self.sequence

    def forward(self, first: int, stop: int, saved: frozenset[int]) -> None:
        """Run units `[first, stop)`: every step the first time, later only steps that `saved`
        needs."""
        end = self.chain.units[stop - 1].stop
        if end > self.reached:
            # The first time every step runs. Values that cross the cut before may be gone.
            recomputed = self.chain.needed(self.chain.crossing[first], self.available)
            self.sequence += recomputed
            self.sequence += range(self.reached, end)
            self.reached = end
        else:
            self.sequence += self.chain.needed(saved, self.available)
        own = set(self.chain.made(first, stop))
        # Values that are not saved count as dropped; liveness then frees them.
        self.available -= own - saved
        self.available |= own & saved

    def backward(self, first: int, stop: int) -> None:
        self.sequence += self.chain.lazy_sequence(self.chain.region(first, stop), self.available)
        self.available.difference_update(self.chain.made(first, stop))
