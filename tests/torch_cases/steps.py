"""A training step of a module by some way to call it: its peak, and the bits that it leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

import graphc
from graphc.torch.budget.trace.measure import measured_peak

SEED = 1

SLACK = 2**20
"""Bytes that a measured peak may be above the planned one, or 1 % of it."""

Case = tuple[nn.Module, tuple[Tensor, ...]]
Bits = dict[str, dict[str, Tensor | None]]
"""Kind, and name, of what a step leaves."""


def tensors_in(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def backward_of_sum(found: Any) -> None:
    """Backward from the sum of all that can be differentiated."""
    outputs = [each for each in tensors_in(found) if each.requires_grad]
    torch.autograd.backward(outputs, [torch.ones_like(each) for each in outputs])


@dataclass(frozen=True)
class Run:
    """A module, how its loss or its outputs are called, the arguments of a step, and the way back.

    With `accumulates`, gradients are added to those that are there.
    """

    module: nn.Module
    loss: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    backward: Callable[[Any], object] = backward_of_sum
    accumulates: bool = False

    def __call__(self) -> list[Tensor]:
        """A step from the same random numbers, whose gradients are made anew; gives its outputs."""
        self._forget()
        torch.manual_seed(SEED)
        found = self.loss(*self.args, **self.kwargs)
        self.backward(found)
        return [each.detach() for each in tensors_in(found)]

    def peak(self, more_held: Iterable[Tensor] = ()) -> int:
        """The largest number of live bytes of a step; a first one, which compiles, goes before."""
        self._forget()
        return measured_peak(self, [*self._there().values(), *more_held])

    def bits(self) -> Bits:
        """What a step leaves: outputs, gradients, buffers and the like, and the random state."""
        outputs = {f"output {place}": each for place, each in enumerate(self())}
        there = self._there()
        gradients = {name: each.grad for name, each in there.items() if each.is_leaf}
        random_state: dict[str, Tensor | None] = {"cpu": torch.get_rng_state()}
        return {
            "outputs": _copies(outputs),
            "gradients": _copies(gradients),
            "buffers": _copies(there),
            "random_state": random_state,
        }

    def _there(self) -> dict[str, Tensor]:
        """What is there before the step, too."""
        given = tensors_in((self.args, dict(self.kwargs)))
        return {
            **dict(self.module.named_parameters()),
            **dict(self.module.named_buffers()),
            **{f"argument {place}": each for place, each in enumerate(given)},
        }

    def _forget(self) -> None:
        for each in () if self.accumulates else self._there().values():
            if each.is_leaf:
                each.grad = None


def _copies(tensors: Mapping[str, Tensor | None]) -> dict[str, Tensor | None]:
    return {name: None if t is None else t.detach().clone() for name, t in tensors.items()}


def by_aot_eager(case: Case) -> Run:
    """The step that plans must equal to the bit."""
    module, args = case
    return Run(module, compiled(module), args)


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call as ``backend="aot_eager"`` runs it."""
    traced = torch.compile(call, backend="aot_eager", fullgraph=True, dynamic=False)

    def loss(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(allow_rnn=True):
            return traced(*args, **kwargs)

    return loss


def different(found: Bits, wanted: Bits) -> list[str]:
    """Kinds and names of what is not equal, to the bit."""
    assert found.keys() == wanted.keys()
    return [
        f"{kind}: {name}"
        for kind, tensors in wanted.items()
        for name in {**tensors, **found[kind]}
        if not _same(found[kind].get(name), tensors.get(name))
    ]


def same_bits(found: Bits, wanted: Bits) -> dict[str, bool]:
    """Whether each kind of tensors is the same."""
    return {kind: different({kind: found[kind]}, {kind: wanted[kind]}) == [] for kind in wanted}


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether both have the same bytes: 0.0 is not -0.0, and what is no number equals itself."""
    if one is None or other is None:
        return one is other
    as_bytes = [each.contiguous().view(-1).view(torch.uint8) for each in (one, other)]
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(*as_bytes)


def fresh(args: Any) -> Any:
    """Arguments of the same contents, which require grad where those did."""

    def copied(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copied, args)


def check(make, args, *, kwargs=None, cut=0.5, backward=backward_of_sum, loss_fn=None):
    """Plan at a budget between the plain peak and the least; compare bits, then peaks.

    `cut` is how far toward the least. Gives the planned step, which has the measured peak.
    """
    kwargs = kwargs or {}
    torch.manual_seed(SEED)
    module = make()
    other = copy.deepcopy(module)
    whole = other if loss_fn is None else (lambda *a: loss_fn(other(*a[:-1]), a[-1]))
    wanted = Run(other, compiled(whole), *fresh((args, kwargs)), backward).bits()
    given = {"loss_fn": loss_fn, "kwargs": kwargs}
    report = graphc.torch.plan(module, args, max_extra_time=0.0, **given).report
    budget = int(report.plain_bytes - cut * (report.plain_bytes - report.least_bytes))
    step = graphc.torch.plan(module, args, budget, **given)
    assert step.report.peak_bytes <= budget
    run = Run(module, step, *fresh((args, kwargs)), backward)
    assert different(run.bits(), wanted) == []
    planned, step.measured = step.report.peak_bytes, run.peak()
    assert step.measured <= planned + max(planned // 100, SLACK), (step.measured, planned)
    return step
