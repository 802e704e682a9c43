"""One run of the compiler: steps that are verified, timed and dumped in the same way.

`graphc.compiler.pipeline` has the list of steps. Every step has a predicate that selects the
options it applies to.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from graphc.compiler.options import PlanningOptions
from graphc.errors import BudgetError, GraphcError, GraphError, OptionError, quoted
from graphc.files import write_atomically
from graphc.ir import builder
from graphc.ir.graph import Graph
from graphc.ir.host_copies import updated_states
from graphc.ir.names import check_name
from graphc.ir.text import format_graph
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.plans.check.check_plan import check_plan
from graphc.plans.memory_plan import Certificate, MemoryPlan
from graphc.plans.names import listed
from graphc.progress import report

Pass = Callable[[Graph], Graph]
Made = TypeVar("Made", Graph, MemoryPlan)


@dataclass(frozen=True)
class Step:
    """A pass of the pipeline: its name, its function, and a predicate of options that enable it.

    A step with `drops_updates` may remove nodes that update states; for others this is an error.
    """

    name: str
    change: Callable[[Graph, Compilation], Graph]
    when: Callable[[PlanningOptions], bool] = lambda options: True
    drops_updates: bool = False


def plain(
    name: str,
    change: Pass,
    when: Callable[[PlanningOptions], bool] = lambda options: True,
    drops_updates: bool = False,
) -> Step:
    """Return a step whose function needs only the graph, not the state of the compilation."""
    return Step(name, lambda graph, compilation: change(graph), when, drops_updates)


@dataclass
class Compilation:
    """State of one run of the pipeline: its options, and results besides the graph.

    If the options name a folder, the result of each step is written there, numbered
    (``00-forward.txt``, ``01-number-streams.txt``, ...), and the durations to ``times.txt``.
    """

    options: PlanningOptions
    dump: Path | None = None
    certificate: Certificate | None = None
    seconds: list[tuple[str, float]] = field(default_factory=list)
    recomputes: bool | None = None
    """True if values may be recomputed, which affects fusion. If None, the options decide."""
    checks: bool = True
    """True if the plan is checked; a search for a batch checks its last plan only."""
    unfused: Graph | None = None
    """The graph before fusion."""
    _allocation: Allocation | None = None
    _verified: Graph | None = None

    def allocation(self, graph: Graph) -> Allocation:
        """Return the allocation of a graph, reusing the cached one if it is for the same graph."""
        if self._allocation is None or self._allocation.graph is not graph:
            options = self.options
            self._allocation = Allocation(
                graph, options.target, options.alignment, options.overlap_copies
            )
        return self._allocation

    def keep(self, allocation: Allocation) -> Graph:
        """Cache an allocation, which a later step may need, and return its graph."""
        self._allocation = allocation
        return allocation.graph

    def stage(self, name: str, make: Callable[[], Made]) -> Made:
        """Run `make`, time it, check the graph or plan it returns, and dump that if requested.

        Raises `GraphError` that names the stage if it returns an ill-formed graph, or none. Other
        errors get a note that names it.
        """
        report(f"planning {self.options.policy}, {self.options.allocate}: {name}")
        started = time.perf_counter()
        try:
            made = make()
        except Exception as error:
            if not isinstance(error, BudgetError):  # its message is complete
                error.add_note(f"in the pass {name!r}")
            raise
        self.seconds.append((name, time.perf_counter() - started))
        if isinstance(made, MemoryPlan):
            if self.checks:
                check_plan(made)
        elif not isinstance(made, Graph):
            raise GraphError(f"the pass {name!r} must return a graph, got {quoted(made)}")
        elif made is not self._verified:  # some steps return the graph unchanged
            _verify_after(name, made)
            self._verified = made
        if self.dump is not None:
            text = format_graph(made) if isinstance(made, Graph) else made.text()
            self._write(self.dump, name, text)
        return made

    def _write(self, folder: Path, name: str, text: str) -> None:
        times = "".join(f"{seconds:10.6f} s  {each}\n" for each, seconds in self.seconds)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (OSError, ValueError) as error:
            raise GraphcError(
                f"cannot dump into {str(folder)!r}: {getattr(error, 'strerror', None) or error}; "
                "choose a writable folder"
            ) from None
        path = folder / f"{len(self.seconds) - 1:02d}-{name}.txt"
        write_atomically(path, text.encode(), GraphcError)
        write_atomically(folder / "times.txt", times.encode(), GraphcError)


def _verify_after(name: str, graph: Graph) -> None:
    try:
        verify(graph)
    except GraphcError as error:
        raise GraphError(f"after the pass {name!r}: {error}") from error


def run(graph: Graph, steps: Sequence[Step], compilation: Compilation) -> Graph:
    """Return the graph after the steps that apply to these options, in order."""
    for step in steps:
        if step.when(compilation.options):
            before = graph
            graph = compilation.stage(step.name, partial(step.change, graph, compilation))
            lost = updated_states(before) - updated_states(graph)
            if lost and not step.drops_updates:
                raise GraphError(
                    f"the pass {step.name!r} removed the updates of {listed(sorted(lost), 3)}; "
                    "keep nodes that replace a state, or the state never changes"
                )
    return graph


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause garbage collection: planning creates many lasting objects and few reference cycles."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def traced(options: PlanningOptions) -> Graph:
    """Return the graph of the loss and the other outputs, by name."""
    if isinstance(options.outputs, Mapping):
        named = dict(options.outputs)
    else:
        values = builder.as_values("outputs", options.outputs)
        named = {f"output{index}": value for index, value in enumerate(values)}
    if options.loss is not None:
        if "loss" in named:
            raise OptionError("the output name 'loss' is reserved; rename the other output")
        named = {"loss": options.loss, **named}
    if not named:
        raise OptionError("compile needs a loss or outputs")
    for name, value in named.items():
        check_name(name)
        builder.as_value(f"output {name!r}", value)
    return builder.trace(named)
