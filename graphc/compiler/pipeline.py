"""The compiler pipeline: a list of named passes from a network to a plan.

Without an optimizer, the training step and its rewrites are skipped. `make_plan` accepts another
list, so a pass can be tried from outside the package. `graphc.compiler.compilation` runs the steps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from graphc.byte_sizes import format_bytes
from graphc.compiler.compilation import Compilation, Step, collection_paused, plain, run, traced
from graphc.compiler.options import PlanningOptions, PlanOptions
from graphc.compiler.settings import settings_of
from graphc.devices.links import links_of
from graphc.errors import OptionError, choose
from graphc.ir import builder
from graphc.ir.graph import Graph, State, Value
from graphc.memory.allocate import Allocation
from graphc.memory.budget import BudgetPlanner
from graphc.memory.order.overlap_collectives import overlap_collectives
from graphc.memory.order.overlap_state_copies import overlap_state_copies
from graphc.memory.order.place_updates import place_updates
from graphc.memory.order.updates_together import updates_together
from graphc.memory.policies import recompute
from graphc.memory.reorder import least_peak, reordered
from graphc.memory.streams import planned_on_streams
from graphc.ops.shape import copy
from graphc.passes.chunk_losses import chunk_losses
from graphc.passes.common_subexpressions import share_common_subexpressions
from graphc.passes.data_parallel import DataParallel
from graphc.passes.dead_code import remove_dead_code
from graphc.passes.float8 import merge_orientations, to_float8, update_scales
from graphc.passes.fusion.bias_gradients import merge_bias_gradients
from graphc.passes.fusion.constants import inline_constants
from graphc.passes.fusion.elementwise import fuse
from graphc.passes.fusion.epilogues import fuse_epilogues
from graphc.passes.fusion.reductions import fuse_reductions
from graphc.passes.host_states import LEAST_BYTES, with_moments_on_host
from graphc.passes.modes import count_step, number_streams, to_inference, without_changes
from graphc.passes.norm_gradients import merge_norm_gradients
from graphc.passes.pad_classes import pad_classes
from graphc.passes.precision import to_mixed, widen_products
from graphc.passes.running_sums import use_running_sums
from graphc.passes.scaled_products import scale_products
from graphc.passes.simplify import simplify
from graphc.passes.time_steps import merge_time_steps
from graphc.passes.training_step import training_graph
from graphc.plans.exchange_times import all_reduce_link
from graphc.plans.goal import Goal
from graphc.plans.memory_plan import PRECISIONS, MemoryPlan

WORTH_CHUNKS = 0.95
"""Losses are computed in chunks if that multiplies the peak by at most this factor."""


def make_plan(
    options: PlanOptions, steps: Sequence[Step] | None = None, checks: bool = True
) -> MemoryPlan:
    """Return the memory plan for the options, by `STEPS` or the given `steps`. With `checks`, the
    plan is proven (graphc/plans/check)."""
    started = time.perf_counter()
    dump = Path(options.dump) if options.dump is not None else None
    compilation = Compilation(options, dump, checks=checks)
    with collection_paused():
        graph = run(traced(options), STEPS if steps is None else steps, compilation)
        memory_plan = compilation.stage("plan", partial(_allocated, graph, compilation))
    return replace(memory_plan, planning_seconds=time.perf_counter() - started)


def _with_states_copied(graph: Graph, compilation: Compilation) -> Graph:
    """Copy outputs that share bytes with a state: updates run before outputs are returned.

    If the step does not train, remove changes of states from the graph instead.
    """
    if not compilation.options.trains:
        return without_changes(graph)
    if not any(map(_shows_a_state, graph.outputs.values())):
        return graph
    outputs = graph.outputs.items()
    return builder.trace({n: copy(v) if _shows_a_state(v) else v for n, v in outputs})


def _shows_a_state(value: Value) -> bool:
    """Return True if a value is a state or a view of one."""
    return isinstance(value.root, State)


def _for_inference(graph: Graph, compilation: Compilation) -> Graph:
    has_gradient = any(node.phase == "gradient" for node in graph.nodes)
    return graph if compilation.options.mode is None and has_gradient else to_inference(graph)


def _losses_chunked(graph: Graph, compilation: Compilation) -> Graph:
    """Return the graph with chunked losses if that lowers the peak without recomputation."""
    if any(node.phase == "gradient" for node in graph.nodes):  # the user's own gradient
        return graph
    chunked = chunk_losses(graph)
    if chunked is graph:
        return graph
    peaks = [_peak(each, compilation.options) for each in (graph, chunked)]
    return chunked if peaks[1] <= WORTH_CHUNKS * peaks[0] else graph


def _peak(graph: Graph, options: PlanningOptions) -> int:
    """Return the approximate peak live bytes of a training step without recomputation and fusion.

    It depends only on the network, the step and the device. Chunking changes the bits of results,
    so the decision must not depend on the placement of values.
    """
    compilation = Compilation(options)
    for step in UNFUSED:  # the pipeline checks each when it runs it
        if step.when(options):
            graph = step.change(graph, compilation)
    return least_peak(Allocation(graph, options.target))


def _mixed(graph: Graph, compilation: Compilation) -> Graph:
    return to_mixed(graph, compilation.options.precision)


def _counting_steps(graph: Graph, compilation: Compilation) -> Graph:
    """Add a step counter if the graph reads it, so that random ops draw new numbers."""
    if builder.STEP not in graph.states:
        return graph
    return builder.trace(graph.outputs, [count_step()])


def _training_step(graph: Graph, compilation: Compilation) -> Graph:
    options = compilation.options
    assert options.trained_by is not None, "the step is for training"
    has_loss_scale = options.precision == "fp16"
    shards = options.shard == "states" and options.ranks > 1
    link = all_reduce_link(options.ranks, links_of(options.planned_for))
    parallel = DataParallel(options.ranks, link, shards, options.sync_norm and options.ranks > 1)
    return training_graph(
        graph,
        options.trained_by,
        options.clip_norm,
        int(options.accumulate),
        has_loss_scale,
        parallel,
    )


def _scales_updated(graph: Graph, compilation: Compilation) -> Graph:
    return update_scales(graph, compilation.options.ranks)


def _with_states_on_host(graph: Graph, compilation: Compilation) -> Graph:
    """Move states to the host; raises `OptionError` if there are none or they exceed the limit."""
    options = compilation.options
    graph = with_moments_on_host(graph)
    size, limit = compilation.allocation(graph).host_state_bytes, options.host_bytes
    if not size:
        raise OptionError(
            f"host_states={options.host_states!r} moves no state: "
            f"{type(options.optimizer).__name__} has no moment here of at least "
            f"{format_bytes(LEAST_BYTES)} that only updates read; omit host_states"
        )
    if limit is not None and size > limit:
        raise OptionError(
            f"host_states={options.host_states!r} needs {format_bytes(size)} of host memory, more "
            f"than host_budget, {format_bytes(limit)}; raise host_budget, or omit host_states"
        )
    return graph


def _recomputes(compilation: Compilation) -> bool:
    given = compilation.recomputes
    return compilation.options.recomputes if given is None else given


def _fused(graph: Graph, compilation: Compilation) -> Graph:
    compilation.unfused = graph
    return compilation.keep(fuse(compilation.allocation(graph), _recomputes(compilation)))


def _reductions_fused(graph: Graph, compilation: Compilation) -> Graph:
    return fuse_reductions(compilation.allocation(graph), _recomputes(compilation))


def planner(graph: Graph, compilation: Compilation) -> BudgetPlanner:
    """Return the planner that meets budgets of bytes or flops by recomputing nodes of a graph."""
    options, plain = compilation.options, graph
    if compilation.unfused is not None:
        plain = run(compilation.unfused, FUSING, Compilation(options, recomputes=False))
    allocation = compilation.allocation(graph)
    return BudgetPlanner(allocation, options.cost_model, options.allocate, options.reorders, plain)


def planner_of(options: PlanningOptions) -> BudgetPlanner:
    """Return the planner of a network, after the steps before recomputation."""
    compilation = Compilation(options)
    return planner(run(traced(options), before("recompute"), compilation), compilation)


def _recomputed(graph: Graph, compilation: Compilation) -> Graph:
    options = compilation.options
    if options.policy != "optimal":
        return recompute(compilation.allocation(graph), options.policy)
    goal = options.goal or Goal()
    found, compilation.certificate = planner(graph, compilation).plan(goal)
    return compilation.keep(found)


def _goal_of_repeats(compilation: Compilation) -> Goal | None:
    """Return the goal that passes after the search for recomputations must still meet, or None."""
    return (compilation.options.goal or Goal()) if compilation.certificate else None


def _in_order(graph: Graph, compilation: Compilation) -> Graph:
    return compilation.keep(reordered(compilation.allocation(graph)))


def _with_updates_together(graph: Graph, compilation: Compilation) -> Graph:
    goal = _goal_of_repeats(compilation)
    return compilation.keep(updates_together(compilation.allocation(graph), goal))


def _with_exchanges_beside(graph: Graph, compilation: Compilation) -> Graph:
    options = compilation.options
    allocation, goal = compilation.allocation(graph), _goal_of_repeats(compilation)
    return compilation.keep(
        overlap_collectives(allocation, options.cost_model, links_of(options.planned_for), goal)
    )


def _with_state_copies_beside(graph: Graph, compilation: Compilation) -> Graph:
    options = compilation.options
    allocation, goal = compilation.allocation(graph), _goal_of_repeats(compilation)
    return compilation.keep(overlap_state_copies(allocation, options.cost_model, goal))


def _allocated(graph: Graph, compilation: Compilation) -> MemoryPlan:
    options = compilation.options
    allocation = compilation.allocation(graph)
    placed = planned_on_streams(
        allocation, options.allocate, options.policy, options.cost_model, options.streams,
        options.goal or Goal(), options.reorders,
    )  # fmt: skip
    return replace(placed, settings=settings_of(options), certificate=compilation.certificate)


def _trains(options: PlanningOptions) -> bool:
    return options.trains


def _trains_in_float8(options: PlanningOptions) -> bool:
    return options.trains and options.precision == "fp8"


FUSING: tuple[Step, ...] = (
    Step("fuse", _fused, lambda options: options.fuses),
    Step(
        "fuse-reductions",
        _reductions_fused,
        lambda options: options.fuses and options.target.has_epilogues,
    ),
    plain("inline-constants", inline_constants, lambda options: options.fuses),
)
"""The fusion steps, which depend on whether values are recomputed."""

STEPS: tuple[Step, ...] = (
    Step("forward", _with_states_copied, drops_updates=True),
    Step("chunk-losses", _losses_chunked, lambda options: options.chunks_losses),
    Step("inference", _for_inference, lambda options: options.mode is not True, drops_updates=True),
    Step("mixed-precision", _mixed, lambda options: PRECISIONS[options.precision] != "float32"),
    plain("number-streams", number_streams),
    plain("simplify", simplify),
    plain("common-subexpressions", share_common_subexpressions),
    plain("pad-classes", pad_classes, lambda options: options.target.pads_rows),
    plain("scale-products", scale_products, lambda options: options.target.scales_products),
    plain("float8", to_float8, lambda options: options.precision == "fp8"),
    plain("dead-code", remove_dead_code),
    Step("count-steps", _counting_steps, lambda options: not options.trains),
    Step("training-step", _training_step, _trains),
    plain("common-subexpressions", share_common_subexpressions, _trains),
    plain("widen-products", widen_products, _trains),
    plain("merge-orientations", merge_orientations, _trains_in_float8),
    Step("scale-updates", _scales_updated, _trains_in_float8),
    plain("time-steps", merge_time_steps, _trains),
    plain("running-sums", use_running_sums, _trains),
    plain(
        "norm-gradients", merge_norm_gradients, lambda options: options.target.merges_norm_gradients
    ),
    plain("place-updates", place_updates, _trains),
    plain("bias-gradients", merge_bias_gradients, lambda options: options.target.has_epilogues),
    plain("fuse-epilogues", fuse_epilogues, lambda options: options.target.has_epilogues),
    Step("host-states", _with_states_on_host, lambda options: options.has_host_states),
    *FUSING,
    Step("recompute", _recomputed, _trains),
    Step("order", _in_order, lambda options: options.reorders and options.policy != "optimal"),
    Step(
        "updates-together",
        _with_updates_together,
        lambda options: options.reorders and options.target.shares_launches,
    ),
    Step(
        "overlap-collectives",
        _with_exchanges_beside,
        lambda options: options.reorders and options.ranks > 1,
    ),
    Step(
        "overlap-state-copies",
        _with_state_copies_beside,
        lambda options: options.reorders and options.has_host_states,
    ),
)
"""The steps in order; after the last one, values are assigned offsets ("plan")."""


UNFUSED = tuple(
    step
    for step in STEPS[: [step.name for step in STEPS].index("place-updates") + 1]
    if step.name not in ("forward", "chunk-losses")
)
"""The steps from the user's graph to a training graph whose peak can be estimated."""


def before(name: str) -> tuple[Step, ...]:
    """Return the steps of `STEPS` before the first step with that name."""
    names = [step.name for step in STEPS]
    return STEPS[: names.index(choose("step", name, names))]
