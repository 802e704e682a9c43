"""cuDNN through NVIDIA's frontend package: convolutions and attention on raw device addresses.

The frontend lists engines for a request in its heuristic order. The first one is chosen that is
deterministic, has the requested precision, fits into the workspace, and can be built again from
its recorded number and knobs; a later run with the record makes the same plans. The choice is
always made for contiguous operands. An operand inside a larger tensor has the same engine, and so
the same bits.
"""

from __future__ import annotations

import importlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from graphc.codegen.cudnn_request import (
    ConvolutionRequest,
    Request,
    packed,
    spread,
)
from graphc.errors import DependencyError, GraphcError, to_install
from graphc.ir.types import float32
from graphc.runtime.gpu.cudnn_graph import graph_of, numbers_of
from graphc.runtime.gpu.records import recorded

BACKEND_ENGINES = range(10_000)
"""The numbers of cuDNN's own engines. Larger numbers are kernels of optional packages of the
frontend, which are not used: they may allocate memory, and may not support graph capture."""


OLDEST = (1, 32)
"""The oldest supported version of the frontend, major and minor."""

LIMIT = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT"
"""The environment variable with the workspace limit, in bytes, of the deterministic gradient of
attention. Above the limit, the frontend sums dq in another order instead (cuDNN 9.25 and later, on
Hopper). The frontend has no other interface for it."""


ROUNDING_NOTES = (
    "DOWN_CONVERT_INPUTS", "FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13",
)  # fmt: skip
"""Numerical notes of engines that round operands, or transform them to domains where rounding
errors grow (`cudnnBackendNumericalNote_t` in cuDNN's API reference)."""


def cudnn_version() -> int:
    """Return the version of the installed cuDNN, such as 91900; 0 if there is no usable one."""
    try:
        return int(load_cudnn().backend_version())
    except DependencyError:
        return 0


class CudnnError(GraphcError):
    """An error of cuDNN, or a record of engines that does not belong to this cuDNN."""


def load_cudnn() -> Any:
    """Import the frontend's module.

    Raises `DependencyError` if it or the library is missing, or if it is too old.
    """
    try:
        library = importlib.import_module("cudnn")
        library.backend_version()
        found = tuple(int(part) for part in library.__version__.split(".")[:2])
        if found < OLDEST:
            raise ImportError(
                f"nvidia-cudnn-frontend must be 1.32 or later, got {library.__version__}"
            )
    except (ImportError, RuntimeError, OSError, AttributeError, ValueError) as error:
        cure = to_install("nvidia-cudnn-frontend nvidia-cudnn-cu13 cuda-bindings", "cudnn")
        raise DependencyError(
            f"cuDNN cannot be used ({error}); {cure}; or pass cudnn=False to use generated kernels"
        ) from None
    return library


@dataclass(frozen=True, slots=True)
class Plan:
    """A request bound to an engine of cuDNN."""

    request: Request
    graph: Any
    workspace_bytes: int
    engine: int
    knobs: Mapping[str, int]


class Cudnn:
    """A cuDNN handle on the current device. `library` is the frontend's module.

    The argument `record` is the property `record` of an earlier run. Unless `deterministic`,
    engines may sum in any order. Raises `CudnnError` for a record of another cuDNN, and
    `DependencyError` if cuDNN finds no usable GPU.
    """

    def __init__(
        self, library: Any, record: Mapping[str, Any] | None = None, deterministic: bool = True
    ) -> None:
        self._library, self._deterministic = library, deterministic
        self._version = int(library.backend_version())
        self._engines = recorded(record, "engines", "cuDNN", self._version, CudnnError)
        self._given = frozenset(self._engines)
        self._plans: dict[str, Plan | None] = {}
        try:
            self._handle = library.create_handle()
        except RuntimeError as error:
            raise DependencyError(
                f"cuDNN cannot be used on this GPU ({error}); pass cudnn=False to use generated "
                "kernels"
            ) from None
        self._end = weakref.finalize(self, _give_back, os.getpid(), library, self._handle)
        self._end.atexit = False  # CUDA has shut down by then

    @property
    def record(self) -> dict[str, Any]:
        """The engine and the knobs of each request so far, as JSON; None if it had no engine.

        Requests are recorded with contiguous operands.
        """
        return {"cudnn": self._version, "engines": dict(self._engines)}

    def build(self, request: Request, workspace_bytes: int, in_parts: bool = False) -> Plan | None:
        """Build a plan that needs at most `workspace_bytes`; None if cuDNN has none.

        With `in_parts`, the engine must also support operands that are parts of larger tensors.
        Allocation strategies differ in the operands that are part of a concatenation, and the node
        must have one engine under all of them. Raises `CudnnError` if a recorded engine is not
        available.
        """
        key = self._key(request, workspace_bytes, in_parts)
        if key not in self._plans:
            limit = workspace_bytes if request.kind == "backward" else None
            with _limited(limit):
                self._plans[key] = self._planned(request, workspace_bytes, in_parts)
        return self._plans[key]

    def _key(self, request: Request, workspace_bytes: int, in_parts: bool) -> str:
        """Return a text that identifies a request and everything else that selects an engine."""
        free = "" if self._deterministic else " any order"
        return signature(request, workspace_bytes) + " in parts" * in_parts + free

    def _planned(self, request: Request, workspace_bytes: int, in_parts: bool) -> Plan | None:
        """Build the plan with the engine that serves the request with contiguous operands.

        The engine determines the bits of the result, so it must not depend on the layouts of
        operands, which differ between strategies.
        """
        usual = packed(request)
        key = self._key(usual, workspace_bytes, in_parts)
        is_known = key in self._engines
        if not is_known:
            plan = self._choose(usual, workspace_bytes, in_parts)
            self._engines[key] = plan and {"engine": plan.engine, "knobs": dict(plan.knobs)}
            if usual == request:
                return plan
        found = self._engines[key]
        if found is None:
            return None
        plan = self._with(request, found, workspace_bytes)
        if plan is None and is_known and key in self._given:
            raise CudnnError(
                f"the recorded engine {found['engine']} is not available for "
                f"{signature(request, workspace_bytes)}; the record may come from another GPU; "
                "delete the record"
            )
        return plan

    def run(self, plan: Plan, addresses: Mapping[str, int], workspace: int, stream: int) -> None:
        """Enqueue a plan on tensors at these device addresses, by role.

        `workspace` is the address of at least `plan.workspace_bytes` bytes. Nothing is allocated,
        so a run can be captured into a CUDA graph after a first run outside of it.
        """
        roles = numbers_of(plan.request)
        if addresses.keys() != roles.keys():
            raise CudnnError(
                f"addresses must be given for {sorted(roles)}, got {sorted(addresses)}"
            )
        self._library.set_stream(self._handle, stream)
        pack = {number: addresses[role] for role, number in roles.items()}
        try:
            plan.graph.execute(pack, workspace=workspace, handle=self._handle)
        except Exception as error:
            key = signature(plan.request, plan.workspace_bytes)
            raise CudnnError(f"engine {plan.engine} failed to run {key}: {error}") from None

    def close(self) -> None:
        """Destroy the handle. This also happens when the object is garbage-collected."""
        self._end()

    def _choose(self, request: Request, workspace_bytes: int, in_parts: bool) -> Plan | None:
        """Return the plan with the first engine in cuDNN's order that fits, or None.

        With `in_parts`, the engine must also support operands that are parts of larger tensors.
        """
        graph = self._described(request)
        if graph is None:
            return None
        modes = self._library.heur_mode
        try:
            graph.create_execution_plans([modes.A, modes.FALLBACK])
            self._restrict(graph, request, workspace_bytes)
        except Exception:  # the frontend's own errors derive from nothing narrower
            return None
        for index in range(graph.get_execution_plan_count()):
            plan = self._at(graph, index, request, workspace_bytes)
            if plan is None:
                continue
            found = {"engine": plan.engine, "knobs": plan.knobs}
            if in_parts:
                serves = self._with(spread(request), found, workspace_bytes) is not None
            else:
                serves = self._named(request, found) is not None
            if serves:
                return plan
        return None

    def _with(
        self, request: Request, found: Mapping[str, Any], workspace_bytes: int
    ) -> Plan | None:
        """Build the plan with an engine and its knobs; None if the engine does not support it."""
        graph = self._named(request, found)
        if graph is None:
            return None
        try:
            self._restrict(graph, request, workspace_bytes)
            index = graph.get_execution_plan_count() - 1
        except Exception:  # the request or the engine is not supported
            return None
        return self._at(graph, index, request, workspace_bytes)

    def _named(self, request: Request, found: Mapping[str, Any]) -> Any:
        """Return the frontend graph of a request with the given engine and knobs as its last plan.

        Returns None if the frontend rejects them. It can list engines, with knobs of older cuDNN
        versions, that it cannot create by name.
        """
        members = self._library.knob_type.__members__
        graph = self._described(request)
        if graph is None:
            return None
        try:
            knobs = {members[name]: number for name, number in found["knobs"].items()}
            graph.create_execution_plan(found["engine"], knobs)
        except Exception:  # the frontend's own errors derive from nothing narrower
            return None
        return graph

    def _described(self, request: Request) -> Any:
        """Build the frontend graph of a request; None if cuDNN cannot express it."""
        try:
            graph = graph_of(self._library, self._handle, request, self._deterministic)
            graph.validate()
            graph.build_operation_graph()
        except Exception:  # the frontend's own errors derive from nothing narrower
            return None
        return graph

    def _restrict(self, graph: Any, request: Request, workspace_bytes: int) -> None:
        notes = self._library.numerical_note
        refused = [notes.REDUCED_PRECISION_REDUCTION]
        if self._deterministic:
            refused.append(notes.NONDETERMINISTIC)
        convolution = request if isinstance(request, ConvolutionRequest) else None
        if convolution is None or not convolution.tf32:
            refused += [getattr(notes, name) for name in ROUNDING_NOTES]
            if convolution is not None and convolution.x.dtype == float32:
                refused.append(notes.TENSOR_CORE)  # for float32, tensor cores compute in TF32
        graph.deselect_numeric_notes(refused)
        graph.deselect_workspace_greater_than(workspace_bytes)

    def _at(self, graph: Any, index: int, request: Request, workspace_bytes: int) -> Plan | None:
        """Return the plan at an index of the frontend's list.

        Returns None if cuDNN cannot build the plan, or if its workspace is too large.
        """
        try:
            engine, knobs = graph.get_engine_and_knobs_at_index(index)
            if engine not in BACKEND_ENGINES:
                return None
            graph.build_plan_at_index(index)
            needed = int(graph.get_workspace_size_plan_at_index(index))
        except Exception:  # the request or the engine is not supported
            return None
        if needed > workspace_bytes:
            return None
        named = {knob.name: int(number) for knob, number in knobs.items()}
        return Plan(request, graph, needed, int(engine), named)


@contextmanager
def _limited(workspace_bytes: int | None) -> Iterator[None]:
    """Limit the workspace of the gradient of attention while the context is active.

    The frontend uses a workspace linear in the number of rows if the quadratic one exceeds the
    limit. A lock admits one thread at a time, since the environment belongs to the process.
    """
    if workspace_bytes is None:
        yield
        return
    with _ENVIRONMENT:
        known = os.environ.get(LIMIT)
        os.environ[LIMIT] = str(workspace_bytes)
        try:
            yield
        finally:
            os.environ.pop(LIMIT, None)
            if known is not None:
                os.environ[LIMIT] = known


_ENVIRONMENT = threading.Lock()


def _give_back(process: int, library: Any, handle: Any) -> None:
    """Destroy the handle, except in a forked child, where it belongs to the parent."""
    if os.getpid() == process:
        library.destroy_handle(handle)


def signature(request: Request, workspace_bytes: int) -> str:
    """Return a unique text for a request and the size of its workspace."""
    return f"{shown(request)} room={workspace_bytes}"


def shown(request: Request) -> str:
    """Return a unique readable text for a request."""
    tensors = " ".join(f"{role}={tensor}" for role, tensor in request.tensors.items())
    if isinstance(request, ConvolutionRequest):
        pairs = (request.stride, request.padding, request.dilation)
        numbers = " ".join(
            f"{name}={'x'.join(map(str, sizes))}"
            for name, sizes in zip(("stride", "pad", "dilation"), pairs, strict=True)
        )
        options = f"{numbers} groups={request.groups} tf32={request.tf32:d}"
        kind = f"convolution {request.kind}"
    else:
        options = f"scale={request.scale!r} causal={request.causal:d}"
        kind = f"attention {request.kind}"
    return f"{kind} {tensors} {options}"
