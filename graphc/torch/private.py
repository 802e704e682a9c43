"""Private names of torch that plans use, of Dynamo and AOTAutograd, for all supported versions.

Importing this module raises `TorchError` if a version of torch lacks one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType, SimpleNamespace
from typing import Any

import torch

from graphc.errors import TorchError
from graphc.forks import lock_across_forks
from graphc.torch.versions import supported

_NO_DEFAULT = object()


def private(path: str, default: Any = _NO_DEFAULT) -> Any:
    """Return what a dotted path names in torch, or a default for versions that lack it.

    Raises `TorchError` if it is missing and has no default.
    """
    module, _, name = path.rpartition(".")
    try:
        return getattr(import_module(module), name)
    except (ImportError, AttributeError):
        if default is not _NO_DEFAULT:
            return default
        raise TorchError(
            f"torch {torch.__version__} has no {path}, which is private and which graphc needs "
            f"for plans; install torch {supported()}"
        ) from None


aot_autograd = private("torch._dynamo.backends.common.aot_autograd")
comptime = private("torch._dynamo.comptime.comptime")
ComptimeVar = private("torch._dynamo.comptime.ComptimeVar")
dynamo_config = private("torch._dynamo.config")
dynamo_errors = private("torch._dynamo.exc")
maybe_mark_dynamic = private("torch._dynamo.maybe_mark_dynamic")
eval_frame = private("torch._dynamo.eval_frame")
OptimizedModule = private("torch._dynamo.eval_frame.OptimizedModule")
get_compilation_metrics = private("torch._dynamo.utils.get_compilation_metrics")

IGNORED_FUNCTIONS = (
    "ignore_logging_functions"
    if hasattr(dynamo_config, "ignore_logging_functions")
    else "ignore_logger_methods"
)
"""The setting of Dynamo with functions that it leaves out; older versions name it otherwise."""
dynamo_utils = private("torch._dynamo.utils")
_VARIABLES = "torch._dynamo.variables"
ConstantVariable = private(f"{_VARIABLES}.ConstantVariable")
TensorVariable = private(f"{_VARIABLES}.TensorVariable")
TorchInGraphFunctionVariable = private(f"{_VARIABLES}.TorchInGraphFunctionVariable")
UserFunctionVariable = private(f"{_VARIABLES}.UserFunctionVariable")
LoggingLoggerVariable = private(f"{_VARIABLES}.misc.LoggingLoggerVariable")
IgnoredFunctionVariable = private(f"{_VARIABLES}.misc.IgnoredFunctionVariable", None)
"""Dynamo's variable for an ignored function; versions below 2.11 have none."""
InstructionTranslatorBase = private("torch._dynamo.symbolic_convert.InstructionTranslatorBase")
guard_failures = private("torch._dynamo.utils.guard_failures")

TracingContext = private("torch._guards.TracingContext")
functorch_config = private("torch._functorch.config")
default_partition = private("torch._functorch.partitioners.default_partition")
has_recomputable_ops = private("torch._functorch.partitioners.has_recomputable_ops")
min_cut_partition = private("torch._functorch.partitioners.min_cut_rematerialization_partition")

_DESCRIPTORS = "torch._functorch._aot_autograd.descriptors"
InputMutationAOTOutput = private(f"{_DESCRIPTORS}.InputMutationAOTOutput")
PlainAOTOutput = private(f"{_DESCRIPTORS}.PlainAOTOutput")
SavedForBackwardsAOTOutput = private(f"{_DESCRIPTORS}.SavedForBackwardsAOTOutput")
SavedForBackwardsNoVcCheckAOTOutput = private(
    f"{_DESCRIPTORS}.SavedForBackwardsNoVcCheckAOTOutput", SavedForBackwardsAOTOutput
)
"""Versions below 2.10 check all saved tensors."""

_HIGHER_ORDER = "torch._higher_order_ops"
auto_functionalized = private(f"{_HIGHER_ORDER}.auto_functionalize.auto_functionalized")
auto_functionalized_v2 = private(f"{_HIGHER_ORDER}.auto_functionalize.auto_functionalized_v2")
with_effects = private(f"{_HIGHER_ORDER}.effects.with_effects")
run_and_save_rng_state = private("torch._prims.rng_prims.run_and_save_rng_state")
run_with_rng_state = private("torch._prims.rng_prims.run_with_rng_state")

TracingContext = private("torch._guards.TracingContext")
keeps_graph = private("torch._C._autograd._get_current_graph_task_keep_graph")
current_autograd_node = private("torch._C._current_autograd_node")
sequence_number = private("torch._C._autograd._get_sequence_nr")
_engine_run_backward = private("torch.autograd.graph._engine_run_backward")
profiler_enabled = private("torch.autograd._profiler_enabled")
disable_current_modes = private("torch.utils._python_dispatch._disable_current_modes")
current_dispatch_mode = private("torch.utils._python_dispatch._get_current_dispatch_mode")
is_wrapper_subclass = private("torch.utils._python_dispatch.is_traceable_wrapper_subclass")

_EFFECTS = f"{_HIGHER_ORDER}.effects"
effect_of = private(f"{_EFFECTS}._get_effect", None) or private(f"{_EFFECTS}.SIDE_EFFECTS").get
"""Return the registered side effect of an op, or None. Versions below 2.10 have a table."""
EffectType = private(f"{_EFFECTS}._EffectType")
register_effectful_op = private(f"{_EFFECTS}._register_effectful_op")


cublas_workspace_size = private("torch._C._cuda_getCublasWorkspaceSize", lambda: None)
cublaslt_workspace_size = private("torch._C._cuda_getCublasLtWorkspaceSize", lambda: None)
"""Return the bytes of a workspace; None below torch 2.14 and without CUDA."""


def inductor() -> SimpleNamespace:
    """Return what plans use of inductor, which takes a second to import.

    Versions below 2.13 have no class for passes of the scheduler, and take any function.
    """
    names = (
        "codecache.compiled_fx_graph_hash",
        "codegen.common.Kernel",
        "compile_fx.compile_fx",
        "compile_fx.compile_fx_inner",
        "config",
        "ir.MultiOutput",
        "ir.MultiOutputLayout",
        "ir.NonOwningLayout",
        "list_mode_options",
        "custom_graph_pass.CustomPartitionerFn",
        "custom_graph_pass.get_hash_for_files",
        "memory.compute_memory_timeline",
        "memory.prepare_planning_info",
        "virtualized.V",
    )
    found = {name.rpartition(".")[2]: private(f"torch._inductor.{name}") for name in names}
    found["CustomSchedulerPass"] = private(
        "torch._inductor.custom_graph_pass.CustomSchedulerPass", object
    )
    return SimpleNamespace(**found)


def run_backward(loss: torch.Tensor) -> None:
    """Accumulate the gradients of a loss under the active modes of torch's functions.

    `torch.autograd.backward` is a function itself, so it disables these modes while it runs.
    """
    ones = torch.ones_like(loss)
    _engine_run_backward(
        (loss,), (ones,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )


def is_engine_of_autograd(caller: FrameType | None) -> bool:
    """Return True if autograd's engine or a formula in C++ called an op, by the caller's frame."""
    while caller is not None and caller.f_globals.get("__name__") in _AROUND_MODES:
        caller = caller.f_back
    return caller is not None and caller.f_code is _engine_run_backward.__code__


_AROUND_MODES = "torch._compile", "torch._dynamo.eval_frame"
"""Modules whose functions call dispatch modes."""


@contextmanager
def autograd_included() -> Iterator[None]:
    """Let ops record their derivatives, also inside the kernel of another op."""
    kept = torch._C._dispatch_tls_local_include_set()
    hidden = torch._C._dispatch_tls_local_exclude_set()
    for name in ("AutogradCPU", "AutogradCUDA", "ADInplaceOrView", "AutogradFunctionality"):
        key = getattr(torch._C.DispatchKey, name, None)
        hidden = hidden if key is None else hidden.remove(key)
    with torch._C._ForceDispatchKeyGuard(kept, hidden):
        yield


Replacement = tuple[Any, str | int, Any]
"""The owner of a function, its name or, in a table, its index, and the function to use instead."""


MOST_CHANGES = 100
"""Number of times that `Replacements` are removed again. From Python 3.13, a class whose attributes
change often is no longer cached, so replacements then stay."""


class Replacements:
    """Replacements of functions of torch, which are active while any thread is inside of `active`.

    `make` yields them; it is called once, at the first use. Replacements that stay longer must work
    as what they replace.
    """

    def __init__(self, make: Callable[[], Iterable[Replacement]]) -> None:
        self._make = make
        self._replacements: list[Replacement] = []
        self._originals: list[Replacement] = []
        self._users, self._changes, self._lock = 0, 0, lock_across_forks()

    @contextmanager
    def active(self) -> Iterator[None]:
        """Replace the functions. The contexts of several threads may overlap."""
        with self._lock:
            if not self._originals:
                self._replace()
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._changes < MOST_CHANGES:
                    self._restore()

    def _replace(self) -> None:
        self._replacements = self._replacements or list(self._make())
        self._changes += 1
        try:
            for owner, name, function in self._replacements:
                self._originals.append((owner, name, _put(owner, name, function)))
        except BaseException:
            self._restore()
            raise

    def _restore(self) -> None:
        while self._originals:
            _put(*self._originals.pop())


def _put(owner: Any, name: str | int, function: Any) -> Any:
    """Set a function, and return the one that was there."""
    if isinstance(name, int):
        before, owner[name] = owner[name], function
    else:
        before = getattr(owner, name)
        setattr(owner, name, function)
    return before
