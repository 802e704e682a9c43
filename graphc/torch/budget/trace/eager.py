"""Functions that run in eager mode inside a planned graph, because Dynamo cannot trace them.

Such a function, for example a loss that matches predictions to labels with SciPy, is one op of the
graph, `EAGER`. An eager run of the module notes its arguments and the shapes of its results
(`sections_of`). The op keeps only the tensors that the function gets: its backward pass runs the
function again with the same random numbers, and differentiates it. Its bytes are measured on the
arguments of the eager run.
"""

from __future__ import annotations

import itertools
import random
import sys
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import numpy as np
import torch
from torch import fx, nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

from graphc.errors import TorchError
from graphc.torch.budget.trace.measure import peaks, seconds_of, until_complete
from graphc.torch.budget.trace.names import GENERATED
from graphc.torch.budget.trace.restored import random_states, set_random_states
from graphc.torch.private import autograd_included, disable_current_modes
from graphc.torch.private import comptime as comptime  # code of `Section.traced` calls it

_SECTIONS: weakref.WeakValueDictionary[int, Section] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()

PLAIN = bool | int | float | str | None
"""Types of arguments and results that are part of a plan."""


class Section:
    """One call of a function in an eager run: its arguments, and the structure of its result.

    Raises `TorchError` for a result that is not made of tensors, numbers, tuples, lists and dicts.
    """

    def __init__(self, function: FunctionType, given: list[Any]) -> None:
        if any(isinstance(each, np.ndarray) for each in tree_leaves(given)):
            raise TorchError(
                f"{function.__qualname__} runs in eager mode, because torch.compile cannot trace "
                "it, but it gets a NumPy array; pass tensors"
            )
        self.function, self.number = function, next(_NUMBERS)
        nothing = torch.empty(0)
        self.given = tree_map(lambda x: nothing if isinstance(x, torch.Tensor) else x, given)
        self.costs: dict[tuple[bool, ...], tuple[float, int]] = {}
        """Seconds and workspace, of the forward pass, and by which tensors need gradients."""
        self.autocast = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        self.text, self.like = "", list[torch.Tensor]()
        self.tensors = [each.detach() for each in tensors_in(given)]
        """Arguments of the eager run, on which costs are measured; the step drops them."""
        self.shapes = [tuple(each.shape) for each in self.tensors]
        _SECTIONS[self.number] = self

    def returns(self, found: Any) -> None:
        """Note the structure of the result."""
        self.text = self._text(found)

    @property
    def key(self) -> Any:
        """Equal for sections that have the same op."""
        results = tuple((tuple(each.shape), each.dtype) for each in self.like)
        return self.function, self.text, results, tuple(self.shapes), repr(plain_in(self.given))

    def refuse_hidden(self) -> None:
        """Raise `TorchError` if the function changes its arguments, or reads parameters."""
        versions = [each._version for each in self.tensors]
        state = _random_state()
        with torch.enable_grad():
            found = self.called(self.tensors)
        _set_random_state(state)
        if any(each.requires_grad for each in found):
            fault = "reads parameters that are not among its arguments; pass them"
        elif versions != [each._version for each in self.tensors]:
            fault = "changes its arguments; compute with copies"
        else:
            return
        raise TorchError(
            f"{self.function.__qualname__} runs in eager mode, because torch.compile cannot trace "
            f"it, but it {fault}"
        )

    def measure(self, needed: tuple[bool, ...]) -> tuple[float, int]:
        """Return seconds and peak bytes of the forward pass, or of the backward pass if needed."""
        if needed not in self.costs:
            state, tensors, number = _random_state(), self.tensors, self.number
            made = EAGER(tensors, number)[:-1]
            indices = [n for n, x in enumerate(made) if needed and x.is_floating_point()]

            def run() -> Any:
                if not needed:
                    return EAGER(tensors, number)
                return EAGER_BACKWARD(tensors, state, made_like, indices, list(needed), number)

            made_like = [torch.ones_like(made[index]) for index in indices]
            self.costs[needed] = seconds_of(run), until_complete(partial(peaks, [run]))[0]
            _set_random_state(state)
        return self.costs[needed]

    def _text(self, found: Any) -> str:
        """Return an expression that builds the result of the op's tensors ``t``."""
        if isinstance(found, np.ndarray):
            return f"{self._text(torch.from_numpy(found))}.numpy()"
        if isinstance(found, torch.Tensor):
            self.like.append(torch.empty(found.shape, dtype=found.dtype, device="meta"))
            self.like[-1].there = found.device
            return f"t[{len(self.like) - 1}]"
        if type(found) is dict:
            return f"{{{', '.join(f'{key!r}: {self._text(x)}' for key, x in found.items())}}}"
        if type(found) is list:
            return f"[{', '.join(map(self._text, found))}]"
        if type(found) is tuple:
            return f"({''.join(f'{self._text(each)}, ' for each in found)})"
        if isinstance(found, PLAIN):
            return repr(found)
        raise TorchError(
            f"{self.function.__qualname__} runs in eager mode, because torch.compile cannot trace "
            f"it, but it returns a {type(found).__name__}; return tensors, numbers, tuples, lists "
            "and dicts"
        )

    @cached_property
    def traced(self) -> FunctionType:
        """Return a function with the parameters of this one, which calls the op when traced."""
        code = self.function.__code__
        names = list(_parameters(code))
        star = ["*" + names[-1 - _has_keywords(code)]] if code.co_flags & 4 else []
        keywords = ["**" + names[-1]] if _has_keywords(code) else []
        plain, only = names[: code.co_argcount], code.co_kwonlyargcount
        named = names[code.co_argcount : code.co_argcount + only]
        bare = ["*"] if named and not star else []
        signature = ", ".join([*plain, *star, *bare, *named, *keywords])
        given = f"[{', '.join(names)}]"
        text = (
            f"def run({signature}):\n"
            f"    if plain_in({given}) != {plain_in(self.given)!r}:\n"
            f"        comptime(_note_change)\n"
            f"    if [tuple(x.shape) for x in tensors_in({given})] != {self.shapes!r}:\n"
            f"        comptime(_note_change)\n"
            f"    t = EAGER(tensors_in({given}), {self.number})\n"
            f"    return {self.text}\n"
        )
        made: dict[str, Any] = {}
        exec(compile(text, GENERATED, "exec"), globals(), made)
        run: FunctionType = made["run"]
        run.__defaults__ = self.function.__defaults__
        run.__kwdefaults__ = self.function.__kwdefaults__
        return run

    def called(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Call the function with `tensors`, and return the tensors in its result."""
        leaves, spec = tree_flatten(self.given)
        others = iter(tensors)
        leaves = [next(others) if isinstance(each, torch.Tensor) else each for each in leaves]
        code, values = self.function.__code__, tree_unflatten(leaves, spec)
        count, only = code.co_argcount, code.co_kwonlyargcount
        args, rest = values[:count], values[count + only :]
        keywords = dict(zip(_parameters(code)[count : count + only], values[count:], strict=False))
        if code.co_flags & 4:
            args, rest = [*args, *rest[0]], rest[1:]
        enabled, dtype = self.autocast
        with torch.autocast("cpu", dtype, enabled):
            found = self.function(*args, **keywords, **(rest[0] if rest else {}))
        made = [
            torch.from_numpy(each) if isinstance(each, np.ndarray) else each
            for each in tree_leaves(found)
            if isinstance(each, (torch.Tensor, np.ndarray))
        ]
        if [(x.shape, x.dtype) for x in made] != [(x.shape, x.dtype) for x in self.like]:
            raise TorchError(
                f"{self.function.__qualname__} runs in eager mode, and returns tensors of other "
                "shapes or types than while it was planned; return shapes that depend on the "
                "shapes of its arguments only"
            )
        return made


def _has_keywords(code: CodeType) -> bool:
    return bool(code.co_flags & 8)


def _parameters(code: CodeType) -> tuple[str, ...]:
    """Return the names of parameters: plain, keyword-only, and the two with stars."""
    stars = bool(code.co_flags & 4) + _has_keywords(code)
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + stars]


def tensors_in(given: Any) -> list[torch.Tensor]:
    """Return the tensors in nested arguments; Dynamo traces this function."""
    return [each for each in tree_leaves(given) if isinstance(each, torch.Tensor)]


def plain_in(given: Any) -> list[Any]:
    """Return the numbers and strings in nested arguments; Dynamo traces this function."""
    return [each for each in tree_leaves(given) if isinstance(each, (bool, int, float, str))]


Functions = dict[CodeType, FunctionType]
Sections = tuple[Section, ...]


class ChangedError(Exception):
    """A section has other numbers or strings as arguments than in the eager run."""


def _note_change(_: Any) -> None:
    raise ChangedError


@contextmanager
def sections_of(functions: Functions) -> Iterator[list[Section]]:
    """Yield a list, to which each call of these functions by this thread adds a section."""
    found: list[Section] = []
    running: list[tuple[FrameType, Section]] = []

    def profile(frame: FrameType, event: str, value: Any) -> None:
        if event == "call" and not running and frame.f_code in functions:
            given = [frame.f_locals[name] for name in _parameters(frame.f_code)]
            running.append((frame, Section(functions[frame.f_code], given)))
        elif event == "return" and running and frame is running[-1][0]:
            section = running.pop()[1]
            section.returns(value)
            found.append(section)

    before = sys.getprofile()
    if functions:
        sys.setprofile(profile)
    try:
        yield found
    finally:
        sys.setprofile(before)


def _forward(given: list[torch.Tensor], number: int) -> list[torch.Tensor]:
    """Return the tensors of a section's result, and the random state before it."""
    section, state = _section(number), _random_state()
    with torch.no_grad():
        found = section.called(given)
    made = _apart(found, section.like, [*given, *_tensors_of_modules(section.given)])
    return [*made, state]


def _apart(
    found: Sequence[torch.Tensor], like: Sequence[torch.Tensor], others: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """Return the tensors in storages of their own, with the strides of new tensors."""
    known = {each.untyped_storage()._cdata for each in others}
    made = []
    for each, wanted in zip(found, like, strict=True):
        storage = each.untyped_storage()
        stride = torch.empty_like(wanted, device="meta").stride()
        is_own = storage._cdata not in known and storage.nbytes() == each.nbytes
        if not is_own or each.stride() != stride:
            each = torch.empty_strided(
                each.shape, stride, dtype=each.dtype, device=each.device
            ).copy_(each)
        known.add(storage._cdata)
        made.append(each)
    return made


def _section(number: int) -> Section:
    if number not in _SECTIONS:
        raise TorchError("this step was deleted; keep it until its backward pass has run")
    return _SECTIONS[number]


def _tensors_of_modules(given: list[Any]) -> list[torch.Tensor]:
    modules = [each for each in tree_leaves(given) if isinstance(each, nn.Module)]
    return [each for module in modules for each in (*module.buffers(), *module.parameters())]


def _backward(
    given: list[torch.Tensor],
    state: torch.Tensor,
    gradients: list[torch.Tensor],
    of: list[int],
    needed: list[bool],
    number: int,
) -> list[torch.Tensor]:
    """Return the gradients of the needed tensors; `of` are the indices of the given gradients."""
    now = _random_state()
    _set_random_state(state)
    try:
        with autograd_included(), torch.enable_grad():
            leaves = [x.detach().requires_grad_(y) for x, y in zip(given, needed, strict=True)]
            found = _section(number).called(leaves)
            differentiated = {
                index: gradient
                for index, gradient in zip(of, gradients, strict=True)
                if found[index].requires_grad
            }
            outputs = [found[index] for index in differentiated]
            inputs = [each for each in leaves if each.requires_grad]
            del found, leaves
            made = torch.autograd.grad(
                outputs,
                inputs,
                list(differentiated.values()),
                allow_unused=True,
                materialize_grads=True,
            )
        return _apart(made, inputs, gradients)
    finally:
        _set_random_state(now)


def _random_state() -> torch.Tensor:
    """Return the states of the generators of torch, NumPy and Python as bytes."""
    numpy: Any = np.random.get_state()  # a tuple
    python = random.getstate()
    words = np.array([*numpy[1], *numpy[2:4], *python[1]], dtype=np.uint64)
    gauss = np.array([numpy[4], np.nan if python[2] is None else python[2]])
    others = torch.frombuffer(bytearray(words.tobytes() + gauss.tobytes()), dtype=torch.uint8)
    return torch.cat([*(state for _, state in random_states()), others])


def _set_random_state(state: torch.Tensor) -> None:
    sizes = {name: each.numel() for name, each in random_states()}
    *parts, others = state.split([*sizes.values(), state.numel() - sum(sizes.values())])
    set_random_states(dict(zip(sizes, (each.clone() for each in parts), strict=True)))
    words = others[:-16].clone().numpy().view(np.uint64)
    gauss = others[-16:].clone().numpy().view(np.float64)
    python = tuple(map(int, words[626:]))
    np.random.set_state(("MT19937", words[:624], int(words[624]), int(words[625]), gauss[0]))
    random.setstate((3, python, None if np.isnan(gauss[1]) else float(gauss[1])))


_LIBRARY = torch.library.Library("graphc", "FRAGMENT")
_LIBRARY.define("eager(Tensor[] given, int number) -> Tensor[]")
_LIBRARY.define(
    "eager_backward(Tensor[] given, Tensor state, Tensor[] gradients, int[] of, bool[] needed, "
    "int number) -> Tensor[]"
)
_LIBRARY.impl("eager", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("eager_backward", _backward, "CompositeExplicitAutograd")
EAGER = torch.ops.graphc.eager.default
"""Op that runs the function of a `Section`; its last result is a random state."""
EAGER_BACKWARD = torch.ops.graphc.eager_backward.default
"""Op that runs the function of a `Section` again, and differentiates it."""
SIZE_OF_STATE = _random_state().numel()


def name_of_section(node: fx.Node) -> str:
    """Return the name of the function that a node runs."""
    function = _section(int(node.args[-1])).function
    return f"{function.__module__}.{function.__qualname__}"


def measured(node: fx.Node) -> tuple[float, int]:
    """Return the seconds and the peak bytes of a node that runs a section."""
    number = int(node.args[-1])
    needed = tuple(node.args[-2]) if node.target is EAGER_BACKWARD else ()
    with disable_current_modes():
        return _section(number).measure(needed)


def _fake(given: Any, number: int) -> list[torch.Tensor]:
    made = [torch.empty(x.shape, dtype=x.dtype, device=x.there) for x in _section(number).like]
    return [*made, torch.empty(SIZE_OF_STATE, dtype=torch.uint8, device="cpu")]


def _fake_backward(given: Any, *others: Any) -> list[torch.Tensor]:
    needed = others[-2]
    return [torch.empty_like(x) for x, y in zip(given, needed, strict=True) if y]


def _set_up(ctx: Any, inputs: Any, output: list[torch.Tensor]) -> None:
    given, ctx.number = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*given, output[-1])


def _differentiate(context: Any, gradients: list[torch.Tensor | None]) -> Any:
    *given, state = context.saved_tensors
    needed = list(context.needs_input_grad[0])
    there = {index: each for index, each in enumerate(gradients) if each is not None}
    args = given, state, list(there.values()), list(there), needed, context.number
    found = iter(EAGER_BACKWARD(*args))
    return [next(found) if each else None for each in needed], None


torch.library.register_fake("graphc::eager", _fake, lib=_LIBRARY)
torch.library.register_fake("graphc::eager_backward", _fake_backward, lib=_LIBRARY)
torch.library.register_autograd(
    "graphc::eager", _differentiate, setup_context=_set_up, lib=_LIBRARY
)
