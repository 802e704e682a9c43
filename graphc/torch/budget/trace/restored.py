"""Restoring the state of a module, its arguments and the generators around a step."""

from __future__ import annotations

import operator
import random
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from graphc.torch.budget.options import Given
from graphc.torch.budget.trace.step import Step


class _SavingParameters(TorchDispatchMode):  # type: ignore[misc]
    """A mode that copies each parameter before an op first writes into it."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.copies: dict[torch.Tensor, torch.Tensor] = {}
        self._of_storage: dict[int, list[torch.Tensor]] = defaultdict(list)
        for each in parameters:
            self._of_storage[each.untyped_storage()._cdata].append(each)

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function._schema.is_mutable:
            for each in tree_leaves((args, kwargs)):
                if isinstance(each, torch.Tensor):
                    self._save(each)
        return function(*args, **(kwargs or {}))

    def _save(self, operand: torch.Tensor) -> None:
        for each in self._of_storage.get(operand.untyped_storage()._cdata, ()):
            if each not in self.copies:
                self.copies[each] = each.detach().clone()


@contextmanager
def without_effects(step: Step, given: Given) -> Iterator[None]:
    """Restore everything but gradients after code that runs without gradients.

    Parameters are copied only if they change, since a budget has no bytes for a second copy. Other
    threads may accumulate gradients meanwhile.
    """
    with as_before(step, given, trains=False):
        saving = _SavingParameters(step.parameters())
        try:
            with saving:
                yield
        finally:
            with torch.no_grad():
                for each, content in saving.copies.items():
                    each.copy_(content)


@contextmanager
def as_before(step: Step, given: Given, trains: bool = True) -> Iterator[Callable[[], None]]:
    """Yield a function that restores the state before a step; at the end, restore everything.

    The function clears ``.grad``, or resets it to its old value (zeros if None) if the step
    accumulates gradients. Unless `trains`, parameters and ``.grad`` are not restored.
    """
    modules = [step.module, *(each for each in step.modules() if each is not step)]
    found = reached([*map(vars, modules), given])
    kept = [(each, _items(each)) for each in found if isinstance(each, CONTAINERS)]
    tensors = [*step.parameters(), *step.buffers(), *found, *tree_leaves(given)]
    tensors = list({id(x): x for x in tensors if isinstance(x, torch.Tensor)}.values())
    learned = [(x, x.grad) for x in tensors if trains and x.requires_grad and x.is_leaf]
    if not trains:
        parameters = set(map(id, step.parameters()))
        tensors = [each for each in tensors if id(each) not in parameters]
    contents = [(each, each.detach().clone(), each._version) for each in tensors]
    versions = [version for *_, version in contents]
    states, numpy, python = dict(random_states()), np.random.get_state(), random.getstate()

    def again() -> None:
        for number, (each, content, _) in enumerate(contents):
            # Batch norm updates its statistics without a new version.
            is_stale = not each.requires_grad and not torch.equal(each, content)
            if is_stale or each._version != versions[number]:
                with torch.no_grad():
                    each.copy_(content)
                versions[number] = each._version
        for container, items in kept:
            _put_back(container, items)
        set_random_states(states)
        np.random.set_state(numpy)
        random.setstate(python)
        for each, old in learned:
            each.grad = _old_gradient(each, old) if step.step_options.accumulate else None

    again()
    try:
        yield again
    finally:
        again()
        for each, old in learned:
            each.grad = old


CONTAINERS = dict, list, set, deque
"""Mutable Python containers that may hold the state of a module."""


def reached(roots: Iterable[Any]) -> list[Any]:
    """Return the roots and everything nested in containers and tuples, each object once."""
    found: dict[int, Any] = {}
    pending = list(roots)
    while pending:
        each = pending.pop()
        if id(each) in found:
            continue
        found[id(each)] = each
        if isinstance(each, (*CONTAINERS, tuple)):
            pending += each.values() if isinstance(each, dict) else each
    return list(found.values())


def _items(container: Any) -> list[Any]:
    return list(container.items() if isinstance(container, dict) else container)


def _put_back(container: Any, items: list[Any]) -> None:
    """Restore the items of a container, if they have changed."""
    now, then = (
        [part for pair in each for part in pair] if isinstance(container, dict) else each
        for each in (_items(container), items)
    )
    if len(now) == len(then) and all(map(operator.is_, now, then)):
        return
    container.clear()
    (container.extend if isinstance(container, list | deque) else container.update)(items)


def _old_gradient(parameter: torch.Tensor, old: torch.Tensor | None) -> torch.Tensor:
    return torch.zeros_like(parameter) if old is None else old.clone()


def random_states() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the state of each generator by its device."""
    yield "cpu", torch.get_rng_state()
    if torch.cuda.is_available():
        for number, state in enumerate(torch.cuda.get_rng_state_all()):
            yield f"cuda:{number}", state


def set_random_states(states: Mapping[str, torch.Tensor]) -> None:
    """Set the state of each generator by its device."""
    for name, state in states.items():
        if name == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, name)
