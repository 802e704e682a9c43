"""Control flow that depends on data: outcomes of an eager run are assumed in a trace and checked.

A *branch* is a place where Python needs the value of a tensor: ``if condition:``, ``bool(x)``, or
``x.item()``. Dynamo cannot trace it. So the module runs once in eager mode, and
`recorded` notes the value at each branch. While Dynamo traces under `assuming`, a branch takes the
recorded value, and the op `expect` is added to the graph. In each step, that op raises
`OtherOutcomeError` if the tensor has another value.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any, NamedTuple

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from graphc.torch.budget.trace.eager import Functions, Section, Sections, sections_of
from graphc.torch.budget.trace.names import function_of, has_parameters, submodule_of
from graphc.torch.budget.trace.printing import printing
from graphc.torch.private import (
    ConstantVariable,
    EffectType,
    InstructionTranslatorBase,
    Replacement,
    Replacements,
    TensorVariable,
    TorchInGraphFunctionVariable,
    UserFunctionVariable,
    register_effectful_op,
)

Value = bool | int | float


class Branch(NamedTuple):
    """A line that branches on data, and the number of times that a call has reached it before.

    `kind` is the type of the value, and values of each kind are numbered separately. Some eager
    functions, such as ``max``, read values that Dynamo does not ask for.
    """

    file: str
    line: int
    number: int
    kind: str

    def __str__(self) -> str:
        return f"{Path(self.file).name}:{self.line}"


class OtherOutcomeError(Exception):
    """A branch has another value than the plan assumes."""

    def __init__(self, branch: Branch, value: Value) -> None:
        super().__init__(branch, value)
        self.branch, self.value = branch, value


@dataclass(frozen=True)
class Outcomes:
    """The value at each branch; `label` is unique within a step, and torch.compile guards on it."""

    values: dict[Branch, Value] = field(default_factory=dict)
    label: str = ""
    sections: tuple[Section, ...] = ()
    """Calls of functions that run in eager mode, in order."""


class Places:
    """Counter of branches by location, which numbers them within one call."""

    def __init__(self) -> None:
        self._count: Counter[tuple[str, int, str]] = Counter()

    def next(self, file: str, line: int, kind: str) -> Branch:
        """Return the branch that is reached now."""
        self._count[file, line, kind] += 1
        return Branch(file, line, self._count[file, line, kind] - 1, kind)


VALUES = tuple(
    getattr(torch.Tensor, name)
    for name in ("__bool__", "item", "__int__", "__float__", "__index__")
)
"""Functions that return the value of a tensor to Python."""


CREATING = (torch.zeros, torch.ones, torch.zeros_like, torch.ones_like)
"""Functions whose new tensor needs no gradient in a trace, because nobody can read it."""


class _Recorder(TorchFunctionMode):  # type: ignore[misc]
    """A mode that notes the value at each branch of code that runs in eager mode."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Branch, Value] = {}
        self._places = Places()

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        frame = sys._getframe(1)
        if function in VALUES and isinstance(found, Value):
            # Dynamo traces int(x) as int(x.item()).
            self._note(frame, found if function is torch.Tensor.__bool__ else args[0].item())
        if function is torch.Tensor.__getitem__:
            for bound in _bounds(args[1]):
                self._note(frame, bound.item())
        return found

    def _note(self, frame: FrameType, value: Value) -> None:
        file, line, kind = frame.f_code.co_filename, frame.f_lineno, type(value).__name__
        self.values[self._places.next(file, line, kind)] = value


def _bounds(index: Any) -> list[torch.Tensor]:
    """Return the tensors that bound slices of an index."""
    slices = [each for each in tree_leaves(index) if isinstance(each, slice)]
    bounds = (bound for each in slices for bound in (each.start, each.stop, each.step))
    return [bound for bound in bounds if isinstance(bound, torch.Tensor)]


def recorded(call: Callable[[], object], eager: Functions) -> tuple[dict[Branch, Value], Sections]:
    """Run a call without gradients, and return its branches and its calls of `eager` functions."""
    with torch.no_grad(), _Recorder() as recorder, sections_of(eager) as sections:
        call()
    for each in sections:
        each.refuse_hidden()
    return recorder.values, tuple(sections)


class Tracing:
    """The outcomes that a trace assumes at branches.

    `is_incomplete` is True if the trace has met a branch that `outcomes` lacks.
    """

    def __init__(self, outcomes: Outcomes) -> None:
        self.outcomes, self.is_incomplete = outcomes, False
        self.breaking: FunctionType | None = None
        """The function to run in eager mode, because the trace has failed in it."""
        self._is_outside = False
        self.failed_in = ""
        """The path of the submodule in which the trace has failed."""
        self._failure: BaseException | None = None
        self._graph: object = None
        self._places = Places()

    def settled(self, translator: Any, variable: Any, is_condition: bool) -> Any:
        """Return the assumed value of Dynamo's variable, and add a check of it to the graph.

        The value of a condition is a bool, and otherwise has the type of the tensor's elements.
        """
        kind = "bool" if is_condition else _kind_of(variable.as_proxy().node.meta["example_value"])
        branch = self._reached(translator, kind)
        if branch not in self.outcomes.values:
            self.is_incomplete = True
            return variable
        value = self.outcomes.values[branch]
        _expect_in_graph(translator, variable, branch, value)
        return ConstantVariable.create(value)

    def check(self, translator: Any, condition: Any) -> None:
        """Add a check to the graph that all elements of Dynamo's variable are true."""
        all_true = condition.call_method(translator, "all", [], {})
        _expect_in_graph(translator, all_true, self._reached(translator, "bool"), True)

    def _reached(self, translator: Any, kind: str) -> Branch:
        self._begin(translator)
        line = translator.current_instruction.positions.lineno
        return self._places.next(translator.f_code.co_filename, line, kind)

    def _begin(self, translator: Any) -> None:
        if self._graph is not translator.output:  # Dynamo has started this trace anew
            self._graph, self._places = translator.output, Places()
            self._sections = list(self.outcomes.sections)

    def inlined(self, translator: Any, function: Any) -> Any:
        """Return the function that Dynamo's variable becomes: an op if it runs in eager mode."""
        self._begin(translator)
        code, sections = function.get_code(), self._sections
        if not sections or sections[0].function.__code__ is not code:
            return function
        return UserFunctionVariable(sections.pop(0).traced)

    @property
    def failure(self) -> int:
        """A number of the error that was noted last."""
        return id(self._failure)

    def succeed(self, before: int) -> None:
        """Forget an error noted since `failure` was `before`: the traced program has caught it."""
        if self.failure != before:
            self._failure, self.breaking, self.failed_in = None, None, ""

    def fail(self, translator: Any, error: BaseException) -> None:
        """Note where an error was raised; callers see the error later."""
        if error is not self._failure:
            self._failure, self.failed_in = error, submodule_of(translator)
            self.breaking, self._is_outside = None, False
        self._is_outside |= has_parameters(translator)
        if not self._is_outside:
            self.breaking = function_of(translator) or self.breaking


def _expect_in_graph(translator: Any, variable: Any, branch: Branch, value: Value) -> None:
    given = (variable.as_proxy(), *branch[:3], value)
    translator.output.create_proxy("call_function", EXPECT, given, {})


def _kind_of(tensor: torch.Tensor) -> str:
    """Return the name of the type of a tensor's ``item()``."""
    if tensor.dtype == torch.bool:
        return "bool"
    return "float" if tensor.is_floating_point() else "int"


def _is_condition() -> bool:
    """Return whether Dynamo asks for an item in order to trace ``bool(x)``."""
    frame: FrameType | None = sys._getframe(2)
    names = set()
    for _ in range(FRAMES_OF_BOOL):
        if frame is not None:
            names.add(frame.f_code.co_name)
            frame = frame.f_back
    return "call_bool" in names


FRAMES_OF_BOOL = 4
"""Number of Dynamo's frames from ``bool(x)`` to ``x.item()``."""


class _Current(threading.local):
    tracing: Tracing | None = None


_CURRENT = _Current()


@contextmanager
def assuming(tracing: Tracing) -> Iterator[None]:
    """Let the traces of this thread take the outcomes at branches and make printing calls."""
    _CURRENT.tracing = tracing
    try:
        with _EXTENDED.active():
            yield
    finally:
        _CURRENT.tracing = None


def _jumping(jump: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    """Return an instruction of Dynamo that jumps by the assumed value of a tensor."""

    @wraps(jump)
    def jumping(translator: Any, instruction: Any) -> None:
        tracing, stack = _CURRENT.tracing, translator.stack
        if tracing is not None and type(stack[-1].realize()) is TensorVariable:
            stack[-1] = tracing.settled(translator, stack[-1].realize(), is_condition=True)
        jump(translator, instruction)

    return jumping


def _extensions() -> Iterator[Replacement]:
    """Yield replacements with which Dynamo asks the current `Tracing` at jumps and for items, and
    notes where it fails. Without a `Tracing`, they work as what they replace."""
    jumps = [op for name, op in dis.opmap.items() if "JUMP" in name and "_IF_" in name]
    kinds = [InstructionTranslatorBase]
    for kind in kinds:
        kinds += kind.__subclasses__()
        for op in jumps:
            if kind.dispatch_table[op] is not None:
                yield kind.dispatch_table, op, _jumping(kind.dispatch_table[op])
    plain, run = TensorVariable.call_method, InstructionTranslatorBase.run
    inline = InstructionTranslatorBase.inline_user_function_return

    @wraps(run)
    def noting(self: Any) -> None:
        # A local variable for the trace would form a cycle with the error that it notes.
        before = 0 if _CURRENT.tracing is None else _CURRENT.tracing.failure
        try:
            run(self)
            if _CURRENT.tracing is not None:
                _CURRENT.tracing.succeed(before)
        except Exception as error:
            if _CURRENT.tracing is not None:
                _CURRENT.tracing.fail(self, error)
            raise

    @wraps(plain)
    def call_method(self: Any, translator: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        tracing = _CURRENT.tracing
        if name == "requires_grad_" and tracing is not None and self.source is None:
            return self
        if name == "item" and tracing is not None:
            found = tracing.settled(translator, self, _is_condition())
            if found is not self:
                return found
        return plain(self, translator, name, *args, **kwargs)

    @wraps(inline)
    def inlining(self: Any, function: Any, *args: Any, **kwargs: Any) -> Any:
        tracing = _CURRENT.tracing
        function = function if tracing is None else tracing.inlined(self, function)
        return inline(self, function, *args, **kwargs)

    call_torch = TorchInGraphFunctionVariable.call_function

    @wraps(call_torch)
    def call_function(self: Any, translator: Any, args: Any, kwargs: Any) -> Any:
        tracing = _CURRENT.tracing
        if tracing is not None and self.value is torch._check_tensor_all and args:
            tracing.check(translator, args[0].realize())
            return ConstantVariable.create(None)
        if tracing is not None and self.value in CREATING:
            kwargs = {name: each for name, each in kwargs.items() if name != "requires_grad"}
        return call_torch(self, translator, args, kwargs)

    yield TorchInGraphFunctionVariable, "call_function", call_function
    yield InstructionTranslatorBase, "run", noting
    yield InstructionTranslatorBase, "inline_user_function_return", inlining
    yield TensorVariable, "call_method", call_method
    yield from printing(lambda: _CURRENT.tracing is not None)


_EXTENDED = Replacements(_extensions)


def _expect(given: torch.Tensor, file: str, line: int, number: int, value: Value) -> None:
    found = type(value)(given.item())
    if repr(found) != repr(value):  # NaN equals NaN
        raise OtherOutcomeError(Branch(file, line, number, type(value).__name__), found)


_LIBRARY = torch.library.Library("graphc", "FRAGMENT")
_LIBRARY.define("expect(Tensor given, str file, int line, int number, Scalar value) -> ()")
_LIBRARY.impl("expect", _expect, "CompositeExplicitAutograd")
_LIBRARY.impl("expect", lambda *_: None, "Meta")
EXPECT = torch.ops.graphc.expect.default
"""Op that raises `OtherOutcomeError` if a tensor has another value than the trace assumes."""
register_effectful_op(EXPECT, EffectType.ORDERED)
