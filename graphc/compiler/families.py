"""Plans and programs of one network for several sizes, such as lengths of sequences."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from graphc.byte_sizes import exact_bytes
from graphc.compiler.compile import CompileOptions, on_this_machine, planned_to_run
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import make_plan
from graphc.errors import BudgetError, OptionError, quoted
from graphc.ir.graph import Value
from graphc.keywords import Options, check_known, declared
from graphc.plans.check.check_family import check_family
from graphc.plans.family import FamilyPlan, Size, in_one_arena, shown
from graphc.plans.memory_plan import MemoryPlan
from graphc.progress import report
from graphc.runtime.bind import bind_family
from graphc.runtime.family import Family

Build = Callable[..., Value | Mapping[str, Value]]
"""A function from the arguments of a size to the loss, or to outputs by name."""

Sizes = Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]]
"""The arguments for each size, or the values of each argument."""

ROUNDS = 4
"""The maximum number of rounds in which sizes are planned again, because constants of other sizes
take bytes of their budgets."""


def family(
    build: Build, sizes: Sizes, *, pad: Mapping[str, float] | None = None, **options: Any
) -> Family:
    """Plan a network for several sizes, and bind all plans to one arena.

    `build(**size)` returns the loss for one size, or a mapping from names to outputs, in which
    ``loss`` is the loss. It must build the same parameters for all sizes. `sizes` lists the
    arguments of each size, as in ``[{"seq_len": 128}, {"seq_len": 256}]``. A mapping such as
    ``{"seq_len": (128, 256)}`` gives all combinations of its values.

    `pad` maps names of inputs to the numbers that fill the rest of a smaller feed, such as
    ``{"tokens": 0, "labels": -100}``. `options` are those of `graphc.compile`. Each size gets its
    own plan within them, so under a budget each size recomputes only as much as it must.

    Raises the errors of `build` and `graphc.compile`, `OptionError` for invalid sizes or options
    that families do not support, `PlanError` if states depend on the size, and `FeedError` for
    invalid numbers in `pad`.
    """
    chosen = sizes_of(sizes)
    _check_supported("family", CompileOptions, options)
    _check_build(build, chosen)
    planned = [
        planned_to_run(CompileOptions(**_network(build, size), **options)) for size in chosen
    ]
    device, running = planned[0].device, planned[0].running
    found = _planned(chosen, [each.plan for each in planned])
    return bind_family(found, {} if pad is None else pad, device=device, **running)


def plan_family(build: Build, sizes: Sizes, **options: Any) -> FamilyPlan:
    """Return the plans of `graphc.family` alone; no arena is allocated.

    `options` are those of `graphc.plan`. Raises the errors of `graphc.family` except `FeedError`.
    """
    chosen = sizes_of(sizes)
    _check_supported("plan_family", PlanOptions, options)
    _check_build(build, chosen)
    planned = [on_this_machine(PlanOptions(**_network(build, size), **options)) for size in chosen]
    return _planned(chosen, planned)


def sizes_of(sizes: object) -> tuple[Size, ...]:
    """Return the arguments of each size; raises `OptionError` if there is none or two are equal."""
    if isinstance(sizes, Mapping):
        try:
            values = [tuple(each) for each in sizes.values()]
        except TypeError:
            raise OptionError(
                f"sizes must list the values of each argument, as in {{'seq_len': (128, 256)}}, "
                f"got {quoted(sizes)}"
            ) from None
        found = [dict(zip(sizes, each, strict=True)) for each in itertools.product(*values)]
    elif isinstance(sizes, Sequence) and all(isinstance(each, Mapping) for each in sizes):
        found = [dict(each) for each in sizes]
    else:
        raise OptionError(
            "sizes must be a list of arguments, as in [{'seq_len': 128}], or map arguments to "
            f"their values, got {quoted(sizes)}"
        )
    if not found or not all(found):
        raise OptionError(
            f"sizes must have at least one size with an argument, got {quoted(sizes)}"
        )
    for one, other in itertools.combinations(found, 2):
        if one == other:
            raise OptionError(f"sizes contains {one} twice; list each size once")
    return tuple(found)


UNSUPPORTED = {
    "overlap_copies": "slots of one size would overlap values of another",
    "states": "all sizes share the states of the family",
    "dump": "the files of one size would replace those of another",
    "loss": "`build` returns the loss",
    "outputs": "`build` returns the outputs",
}
"""Options that families do not support, and the reasons."""


def _check_supported(function: str, kind: type[Options], options: Mapping[str, Any]) -> None:
    """Raise `OptionError` for options that are unknown, or that families do not support."""
    known = [name for name in declared(kind) if name not in UNSUPPORTED]
    for name in options:
        if name not in UNSUPPORTED:
            check_known(function, name, known)
    for name, reason in UNSUPPORTED.items():
        if options.get(name):
            raise OptionError(f"a family does not support {name}, since {reason}; omit it")
    if options.get("ranks", 1) != 1:
        raise OptionError(
            f"a family runs in one process, got ranks={options['ranks']}; omit it, or compile one "
            "program for the largest size"
        )


def _check_build(build: object, sizes: Sequence[Size]) -> None:
    """Raise `OptionError` for a function that does not accept the arguments of each size."""
    if not callable(build):
        raise OptionError(
            "the first argument of a family must be a function that builds the network for one "
            f"size, got {quoted(build)}"
        )
    try:
        signature = inspect.signature(build)
    except ValueError:  # a function that has no signature
        return
    for size in sizes:
        try:
            signature.bind(**size)
        except TypeError as error:
            raise OptionError(
                f"the function of a family cannot be called with the size {dict(size)}: {error}; "
                "sizes must have its arguments by name"
            ) from None


def _network(build: Build, size: Size) -> dict[str, Any]:
    """Build the network for a size, and return it as options of a plan."""
    made = build(**size)
    if isinstance(made, Mapping):
        outputs = dict(made)
        return {"loss": outputs.pop("loss", None), "outputs": outputs}
    if not isinstance(made, Value):
        raise OptionError(
            "the function of a family must return a value, the loss, or a mapping from names to "
            f"outputs; for {dict(size)} it returned {quoted(made)}"
        )
    return {"loss": made}


def _planned(sizes: tuple[Size, ...], options: Sequence[PlanOptions]) -> FamilyPlan:
    """Return the plans in one arena, planned again where foreign constants exceed the budget."""
    plans = [_plan(size, each) for size, each in zip(sizes, options, strict=True)]
    found = in_one_arena(sizes, plans)
    for _ in range(ROUNDS):
        over = list(_over_budget(found, plans, options))
        if not over:
            check_family(found.plans, found.arena_bytes)
            return found
        for index, grown in over:
            plans[index] = _plan_beside(sizes[index], options[index], grown)
        found = in_one_arena(sizes, plans)
    raise BudgetError(
        f"the constants of all sizes change with their plans, and {found.arena_bytes:,} bytes are "
        "the smallest arena found; raise the budget, or make constants inputs",
        found.arena_bytes,
        found.largest.live_bytes,
    )


def _over_budget(
    found: FamilyPlan, plans: Sequence[MemoryPlan], options: Sequence[PlanOptions]
) -> Iterator[tuple[int, int]]:
    """Yield the plans that exceed their budget in the arena, with the bytes of other constants."""
    for index, (plan, asked) in enumerate(zip(found.plans, options, strict=True)):
        budget = None if asked.goal is None else asked.goal.budget
        if budget is not None and plan.arena_bytes > budget:
            yield index, plan.arena_bytes - plans[index].arena_bytes


def _plan_beside(size: Size, options: PlanOptions, grown: int) -> MemoryPlan:
    """Return the plan of a size within its budget, of which constants of other sizes take `grown`
    bytes.

    A `BudgetError` names the budget that was asked for.
    """
    assert options.goal is not None
    budget = options.goal.budget
    assert budget is not None
    try:
        return _plan(size, replace(options, budget=max(0, budget - grown)))
    except BudgetError as error:
        raise BudgetError(
            f"{shown(size)}: no plan within {exact_bytes(budget)} was found, of which "
            f"{exact_bytes(grown)} are constants of other sizes; the smallest arena found needs "
            f"{exact_bytes(error.least_bytes + grown, up=True)}. Raise the budget, or make "
            "constants inputs",
            error.least_bytes + grown, error.bound_bytes, error.node, error.values,
        ) from None  # fmt: skip


def _plan(size: Size, options: PlanOptions) -> MemoryPlan:
    """Return the plan of a size; a `BudgetError` names the size."""
    report(f"planning {shown(size)}")
    try:
        return make_plan(options)
    except BudgetError as error:
        message = f"{shown(size)}: {error}"
        raise BudgetError(
            message, error.least_bytes, error.bound_bytes, error.node, error.values
        ) from None
