"""Audit of another partitioner: its peak, what it recomputes, and whether its values are right.

The partitioner splits the joint graph of a module as it would under torch.compile. The checker of
plans replays its graphs, with the measured costs of the nodes. The lower bounds are those of plans
for the same module.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import wraps
from typing import Any

from torch import fx, nn

from graphc.byte_sizes import exact_bytes
from graphc.errors import GraphcError, OptionError, TorchError, choose, quoted
from graphc.torch.budget.check.autograd_rules import Traced
from graphc.torch.budget.check.contents import Numbers
from graphc.torch.budget.check.graphs import Fault, Replay, StepGraphs
from graphc.torch.budget.check.replay import replay
from graphc.torch.budget.goal import Goal, prepared, to_replay
from graphc.torch.budget.make_step import refuse_call
from graphc.torch.budget.plan.costs import measure
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.report.report import Repeated, table
from graphc.torch.budget.report.verified import Verified
from graphc.torch.budget.step import PlannedStep
from graphc.torch.budget.trace.backend import Graphs, Rest
from graphc.torch.budget.trace.held import Held
from graphc.torch.budget.trace.joint import Joint, backward_nodes, copied
from graphc.torch.budget.trace.names import module_path
from graphc.torch.budget.trace.settings import Loss
from graphc.torch.budget.trace.sources import Source
from graphc.torch.budget.trace.step import StepOptions
from graphc.torch.private import (
    default_partition,
    functorch_config,
    has_recomputable_ops,
    min_cut_partition,
    run_and_save_rng_state,
    run_with_rng_state,
)


@dataclass(frozen=True)
class Audit:
    """Figures of the graphs of a partitioner; no step runs for them.

    `peak_bytes` is the peak of a whole step, and `plain_bytes` that of graphc without
    recomputation. `bound_bytes` is a lower bound on the peak of every plan. `extra_time` is a
    fraction of `seconds`, the time of a step without recomputation. `bound_time` is a lower bound
    on the extra time of every plan within the peak.
    """

    peak_bytes: int
    plain_bytes: int
    bound_bytes: int
    seconds: float
    extra_time: float
    bound_time: float
    repeated: tuple[Repeated, ...]
    faults: tuple[Fault, ...]
    """Nodes that compute wrong values, and then the wrong outputs, gradients and inputs."""
    step: PlannedStep | None = field(default=None, repr=False, compare=False)

    @property
    def is_correct(self) -> bool:
        """True if the graphs compute the values of the module."""
        return not self.faults

    def verify(self, *args: Any, **kwargs: Any) -> Verified:
        """Run and measure one step of the graphs; as `PlannedStep.verify`."""
        assert self.step is not None, "an audit has a step"
        return self.step.verify(*args, **kwargs)

    @property
    def json(self) -> dict[str, Any]:
        """The audit as a JSON object.

        {"peak_bytes": int,              peak of a whole step
         "plain_bytes": int,             peak of graphc's plan without recomputation
         "bound_bytes": int,             lower bound on the peak of every plan
         "step_seconds": float,          sum of node times of a step without recomputation
         "extra_time_fraction": float,   recomputation time as a fraction of `step_seconds`
         "extra_time_bound": float,      lower bound on it for every plan within this peak
         "repeated": [{"module": str, "times": int, "seconds": float}],
         "correct": bool,
         "faults": [{"node": str, "problem": str}]}
        """
        return {
            "peak_bytes": self.peak_bytes,
            "plain_bytes": self.plain_bytes,
            "bound_bytes": self.bound_bytes,
            "step_seconds": self.seconds,
            "extra_time_fraction": self.extra_time,
            "extra_time_bound": self.bound_time,
            "repeated": [asdict(each) for each in self.repeated],
            "correct": self.is_correct,
            "faults": [{"node": each.node, "problem": each.problem} for each in self.faults],
        }

    def __str__(self) -> str:
        above = self.peak_bytes / max(1, self.bound_bytes)
        rows = {
            "peak": exact_bytes(self.peak_bytes),
            "recomputing nothing": exact_bytes(self.plain_bytes),
            "lower bound": f"{exact_bytes(self.bound_bytes)}; the peak is {above:.2f} times that",
            "extra time": f"{self.extra_time:.1%} of a step, lower bound {self.bound_time:.1%}",
            "values": "correct" if self.is_correct else f"wrong: {len(self.faults)} faults",
        }
        repeats = [(e.module, f"{e.times} times, {e.seconds * 1e3:.2f} ms") for e in self.repeated]
        lines = [f"{label:<19} {figure}" for label, figure in rows.items()]
        lines += table("recomputed", repeats)
        return "\n".join([*lines, *table("faults", [(e.node, e.problem) for e in self.faults])])


class Partition(Goal):
    """Graphs of a given partitioner, instead of a budget."""

    writes_inputs = True

    def __init__(self, partition_fn: Callable[..., Graphs]) -> None:
        super().__init__(None, None)
        self.partition_fn = partition_fn

    def planned(
        self,
        joint: Joint,
        held: Held,
        sources: Mapping[fx.Node, Source],
        rest: Rest,
        *_: object,
    ) -> Planned:
        """Return the partitioner's graphs, with their audit."""
        forward, backward = self.graphs(joint, rest)
        torch_steps, planner = prepared(joint, held.bytes, measure(joint))
        plan = replace(to_replay(torch_steps, forward.graph, backward.graph), is_foreign=True)
        found = replay(plan)
        seconds = {
            traced: torch_steps.measured[node].seconds
            for traced, node in joint.node_of.items()
            if node in torch_steps.measured
        }
        repeated = tuple(_repeated(plan, found, seconds))
        whole = planner.seconds or 1.0
        audit = Audit(
            peak_bytes=found.peak.bytes,
            plain_bytes=planner.no_recompute.peak_bytes,
            bound_bytes=planner.bound_bytes,
            seconds=planner.seconds,
            extra_time=sum(each.seconds for each in repeated) / whole,
            bound_time=planner.bound_cost(found.peak.bytes) / whole,
            repeated=repeated,
            faults=tuple(_named(fault, joint, sources) for fault in found.faults),
        )
        return Planned(audit, torch_steps, forward, backward, found)

    def graphs(self, joint: Joint, rest: Rest) -> Graphs:
        """Call the partitioner with a copy of the joint graph, which it may change."""
        given, more = rest
        module = fx.GraphModule(joint.module, copied(joint.traced, {}))
        try:
            graphs = self.partition_fn(module, given, num_fwd_outputs=joint.forward_outputs, **more)
        except GraphcError:
            raise
        except Exception as error:
            raise TorchError(f"partition_fn failed: {type(error).__name__}: {error}") from error
        if (
            isinstance(graphs, tuple | list)
            and len(graphs) == 2
            and all(isinstance(each, fx.GraphModule) for each in graphs)
        ):
            for each in graphs:
                add_values(each.graph, joint.fake_mode)
            return graphs[0], graphs[1]
        raise TorchError(
            "partition_fn must return two torch.fx.GraphModule, the forward and the backward "
            f"graph, got {type(graphs).__name__}"
        )


def _repeated(
    plan: StepGraphs, found: Replay, seconds: Mapping[fx.Node, float]
) -> Iterator[Repeated]:
    """Yield the recomputations by module, those that take longest first.

    A graph may compute a value several times because the module does, so these do not count.
    """
    traced, backward = Traced(plan, Numbers()), backward_nodes(plan.joint)
    extra: Counter[tuple[fx.Node, bool]] = Counter()
    total: Counter[fx.Node] = Counter()
    for index, moment in enumerate(found.moments):
        if moment.original is not None:
            first = traced.first.get(moment.original, moment.original)
            extra[first, index > found.boundary] += 1
            total[first] += 1
    for node, first in traced.first.items():
        extra[first, node in backward] -= 1
    times: Counter[fx.Node] = Counter()
    for (node, _), count in extra.items():
        times[node] += max(0, count)
    modules: dict[str, tuple[int, float]] = {}
    for node, count in times.items():
        again = min(count, total[node] - 1)
        if again > 0:
            path = module_path(node)
            before, spent = modules.get(path, (0, 0.0))
            modules[path] = before + again, spent + again * seconds.get(node, 0.0)
    rows = [Repeated(path, *each) for path, each in modules.items()]
    yield from sorted(rows, key=lambda row: (-row.seconds, row.module))


def _named(fault: Fault, joint: Joint, sources: Mapping[fx.Node, Source]) -> Fault:
    """Return a fault of an output with the name of its tensor."""
    if fault.output is None:
        return fault
    what = joint.output_descriptions[fault.output]
    by_description = {node.meta.get("desc"): source for node, source in sources.items()}
    leaf = by_description.get(getattr(what, "grad_of", None))
    if leaf is not None:
        return replace(fault, problem=f"the gradient of {leaf.name} is wrong")
    return replace(fault, problem="an output of the module, or a new buffer, is wrong")


def audited(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    partition_fn: str | Callable[..., Graphs],
    memory_budget: float | None,
    loss_fn: Callable[..., Any] | None,
) -> Audit:
    """Return the audit of a partitioner; implements `graphc.torch.audit`."""
    refuse_call(module, loss_fn, args)
    goal = Partition(partitioner(partition_fn, memory_budget))
    step = PlannedStep(module, loss_fn, goal, StepOptions(Loss.of(None, True)))
    step.plan(args, kwargs)
    audit: Audit = step.plans[-1].report
    return replace(audit, step=step)


Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""A ``partition_fn`` of ``aot_autograd``."""


def checkpoint_partition(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Recompute what ``torch.utils.checkpoint`` marks in the module, and nothing else."""
    if not has_recomputable_ops(module):
        raise TorchError(
            "the module does not call torch.utils.checkpoint, so the partition 'checkpoint' would "
            "recompute nothing; call it in the module, or choose min-cut"
        )
    return default_partition(module, *args, **kwargs)


PARTITIONERS: dict[str, Partitioner] = {
    "min-cut": min_cut_partition,
    "default": default_partition,
    "checkpoint": checkpoint_partition,
}


def add_values(graph: fx.Graph, fake_mode: Any) -> None:
    """Add the fake values of nodes that a partitioner creates without, such as random ops."""
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        state = tuple(each.meta["val"] for each in node.users if each.args[1:] == (0,))
        first = {run_and_save_rng_state: 1, run_with_rng_state: 2}.get(node.target, 0)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with fake_mode:
            value = (args[first - 1] if first else node.target)(*args[first:], **kwargs)
        node.meta["val"] = (*state, value) if node.target is run_and_save_rng_state else value


def partitioner(given: str | Partitioner, memory_budget: float | None) -> Partitioner:
    """Return a partitioner that runs under this ``activation_memory_budget``, from 0 to 1."""
    if isinstance(given, str):
        given = PARTITIONERS[choose("partition", given, tuple(PARTITIONERS))]
    if not callable(given):
        raise OptionError(
            f"partition_fn must be a function or one of {', '.join(PARTITIONERS)}, got "
            f"{quoted(given)}"
        )
    if memory_budget is None:
        return given
    is_number = isinstance(memory_budget, int | float) and not isinstance(memory_budget, bool)
    if not is_number or not 0 <= memory_budget <= 1:
        raise OptionError(
            f"activation_memory_budget must be a number from 0 to 1, got {memory_budget!r}"
        )

    @wraps(given)
    def within(*args: Any, **kwargs: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=memory_budget):
            return given(*args, **kwargs)

    return within
