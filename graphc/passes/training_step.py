"""The graph of a training step: micro-batches, gradients, loss scaling, clipping, updates."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace

from graphc.errors import OptionError
from graphc.ir import builder
from graphc.ir.graph import Graph, Node, State, Value
from graphc.ir.types import DType, compute_dtype, float32, float64
from graphc.ops.choice import cast, less_equal, maximum
from graphc.ops.concat import concat
from graphc.ops.elementwise import add, div, mul, scale, sqrt
from graphc.ops.reduce import square_sum
from graphc.ops.shape import full, reshape
from graphc.ops.update import LossScaleAttributes, LossScaleUpdate, Update
from graphc.optim import LARGEST_FLOAT32, Optimizer
from graphc.passes.data_parallel import DataParallel
from graphc.passes.gradient import gradient
from graphc.passes.micro_batches import MicroBatch, micro_batches
from graphc.passes.modes import count_step, training_effects, without_changes
from graphc.passes.sharded_states import ShardedStates
from graphc.passes.synchronized_norms import synchronized_norms

FIRST_LOSS_SCALE = 2.0**16
GOOD_STEPS = 2000.0
"""The number of consecutive steps without overflow after which the loss scale doubles; 2000 is
usual."""


def training_graph(
    forward: Graph,
    optimizer: Optimizer,
    clip_norm: float | None,
    accumulate: int,
    has_loss_scale: bool,
    parallel: DataParallel,
) -> Graph:
    """Return the forward graph with gradients and updates of all trainable parameters.

    Nothing is recomputed. `clip_norm` is the maximum norm of all gradients together, to which they
    are clipped. `accumulate` is the number of micro-batches. With `has_loss_scale`, the loss is
    scaled for gradients in float16. `parallel` defines how ranks combine gradients.
    """
    norms = synchronized_norms(forward, parallel.ranks) if parallel.syncs_norms else None
    if norms is not None:
        forward = norms.graph
    trained = _trained(forward)
    wide = float64 if any(state.type.dtype == float64 for state in trained) else float32
    with builder.in_phase("update"):
        updater = optimizer.begin(wide)
    scaling = _LossScale() if has_loss_scale else None
    batches, gradients = _accumulated(forward, trained, accumulate, scaling, parallel)
    sharded = None
    if parallel.shards_states:
        others = [value for batch in batches for value in batch.graph.outputs.values()]
        names = {state.name for state in forward.states}
        sharded = ShardedStates.of(parallel, trained, gradients, updater, others, names)
        targets = [(row.state, row.updater) for row in sharded.rows]
        gradients = [row.gradient for row in sharded.rows]
    else:
        targets = [(state, updater) for state in trained]
        with builder.in_phase("gradient"):
            gradients = parallel.summed(gradients)
    with builder.in_phase("update"):
        gradients, finite = _conditioned(gradients, wide, clip_norm, scaling, parallel)
        updates = parallel.averaged(training_effects(forward, batches, norms))
    for (state, own), value in zip(targets, gradients, strict=True):
        with builder.in_phase("update", state.name.rpartition("/")[0]):
            updates.append(own.update(state, value))
    finish = getattr(updater, "finish", None)  # only parameter groups need all parameters together
    if finish is not None:
        finish()
    outputs = _joined_outputs([batch.graph for batch in batches], parallel)
    if builder.STEP in builder.trace(outputs, updates).states:
        updates.append(count_step())
    if scaling is not None and finite is not None:
        updates = [_guarded(node, finite) for node in updates] + [scaling.update(finite)]
    graph = without_changes(builder.trace(outputs, updates))
    if sharded is not None:
        graph = sharded.gathered(graph)
    return replace(graph, kept=frozenset().union(*(batch.graph.kept for batch in batches)))


def _trained(forward: Graph) -> list[State]:
    if "loss" not in forward.outputs:
        raise OptionError("an optimizer needs a loss; pass it as the first argument of compile")
    trained = [state for state in forward.states if state.trainable]
    if not trained:
        raise OptionError("an optimizer needs trainable parameters, but the loss depends on none")
    return trained


def _accumulated(
    forward: Graph,
    trained: Sequence[State],
    accumulate: int,
    scaling: _LossScale | None,
    parallel: DataParallel,
) -> tuple[list[MicroBatch], list[Value]]:
    """Return the micro-batches, and the gradients of `trained` summed over all of them.

    The nodes of a micro-batch and of its gradients are created before those of the next one.
    """
    batches: list[MicroBatch] = []
    totals: list[Value] = []
    for batch in micro_batches(forward, accumulate, parallel.ranks):
        with builder.in_phase("gradient"):
            loss = parallel.share_of(batch.graph.outputs["loss"], accumulate)
            if scaling is not None:
                loss = cast(loss, compute_dtype(loss.type.dtype))
                loss = mul(loss, cast(scaling.factor, loss.type.dtype))
        found = gradient(loss, trained)
        with builder.in_phase("gradient"):
            totals = (
                [add(*pair) for pair in zip(totals, found, strict=True)] if batches else [*found]
            )
        batches.append(batch)
    return batches, totals


def _conditioned(
    gradients: list[Value],
    wide: DType,
    clip_norm: float | None,
    scaling: _LossScale | None,
    parallel: DataParallel,
) -> tuple[list[Value], Value | None]:
    """Return the gradients without the loss scale, clipped to a norm of at most `clip_norm`.

    With a loss scale, the second result is a bool value, true if all gradients are finite.
    Otherwise it is None.
    """
    if clip_norm is None and scaling is None:
        return gradients, None
    squares = functools.reduce(add, (cast(square_sum(value), wide) for value in gradients))
    squares = parallel.total_of_parts(squares)
    factor = full((), 1.0, wide)
    norm = sqrt(squares)
    if scaling is not None:
        factor = div(factor, cast(scaling.factor, wide))
        norm = mul(norm, factor)
    if clip_norm is not None:
        limit = full((), float(clip_norm), wide)
        factor = mul(factor, div(limit, maximum(norm, limit)))
    shrunk = [mul(value, cast(factor, value.type.dtype)) for value in gradients]
    return shrunk, less_equal(squares, LARGEST_FLOAT32) if scaling is not None else None


class _LossScale:
    """The loss scale for float16, and the steps without overflow since it last changed."""

    def __init__(self) -> None:
        def counter(name: str, value: float) -> State:
            return builder.state(f"loss_scale/{name}", (), float32, value, "counter")

        self.factor = counter("factor", FIRST_LOSS_SCALE)
        self.good_steps = counter("good_steps", 0.0)

    def update(self, finite: Value) -> Node:
        with builder.in_phase("update"):
            operands = (self.factor, self.good_steps, finite)
            attributes = LossScaleAttributes(GOOD_STEPS)
            return builder.apply(LossScaleUpdate, *operands, attributes=attributes)


def _guarded(node: Node, finite: Value) -> Node:
    """Return a copy of an update that only runs if all gradients are finite."""
    if not isinstance(node.op, Update):
        raise OptionError(
            f"precision='fp16' skips updates that overflow, but {node.label} is not an Update and "
            "cannot be skipped; derive its op from graphc.ops.update.Update, or use 'bf16'"
        )
    with builder.in_phase("update", node.scope):
        return builder.apply(type(node.op), *node.inputs, finite, attributes=node.attributes)


def _joined_outputs(graphs: Sequence[Graph], parallel: DataParallel) -> Mapping[str, Value]:
    """Return the outputs of a step.

    The loss is averaged over micro-batches and ranks. Other outputs are stacked along a new first
    axis; each rank has its own.
    """
    if len(graphs) == 1:
        loss = graphs[0].outputs["loss"]
        with builder.in_phase("forward"):
            return {**graphs[0].outputs, "loss": parallel.mean(loss)}
    outputs: dict[str, Value] = {}
    with builder.in_phase("forward"):
        for name in graphs[0].outputs:
            values = [graph.outputs[name] for graph in graphs]
            if name == "loss":
                loss = scale(functools.reduce(add, values), 1 / len(values))
                outputs[name] = parallel.mean(loss)
            else:
                outputs[name] = concat([reshape(value, (1, *value.shape)) for value in values])
    return outputs
