"""cuDNN through NVIDIA's frontend package: convolutions and attention on raw device addresses.

The frontend offers engines for a request in an order of its own. Taken is the first that is
deterministic, computes as precisely as asked, and needs no more workspace than there is, for the
request as it would be in one piece: parts of larger tensors then have its bits. Which one that was,
with its knobs, goes into a record; given back, the record makes the same plans again.
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
    AttentionRequest,
    ConvolutionRequest,
    Request,
    packed,
    spread,
)
from graphc.errors import DependencyError, GraphcError, to_install
from graphc.ir.types import DType, bfloat16, float16, float32, float64
from graphc.runtime.gpu.records import recorded

DATA_TYPES = {float32: "FLOAT", float64: "DOUBLE", float16: "HALF", bfloat16: "BFLOAT16"}
"""The names of dtypes in cudnn.data_type."""

BACKEND_ENGINES = range(10_000)
"""Numbers of cuDNN's own engines. Above are kernels that the frontend's optional packages bring
along; what they allocate, and whether they can be captured, is theirs to say."""


OLDEST = (1, 32)
"""The first version of the frontend that is taken, major and minor."""

LIMIT = "CUDNN_FRONTEND_ATTN_DP_WORKSPACE_LIMIT"
"""The variable by which the frontend is told, and it has no other way, how many bytes a
deterministic gradient of attention may take before it sums dq in an order of its own instead (cuDNN
9.25 and later, on Hopper)."""


ROUNDING_NOTES = (
    "DOWN_CONVERT_INPUTS", "FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "WINOGRAD_TILE_6x6",
    "WINOGRAD_TILE_13x13",
)  # fmt: skip
"""Numerical notes of engines that round operands or transform them to domains where their rounding
errors grow (cudnnBackendNumericalNote_t in cuDNN's API reference)."""


def cudnn_version() -> int:
    """The version of the installed cuDNN, such as 91900; 0 where there is none that is used."""
    try:
        return int(load_cudnn().backend_version())
    except DependencyError:
        return 0


class CudnnError(GraphcError):
    """cuDNN refused a call, or a record of engines does not belong to this cuDNN."""


def load_cudnn() -> Any:
    """The frontend's module; raises `DependencyError` where it or the library is missing, or of
    another version."""
    try:
        library = importlib.import_module("cudnn")
        library.backend_version()
        found = tuple(int(part) for part in library.__version__.split(".")[:2])
        if found < OLDEST:
            raise ImportError(f"nvidia-cudnn-frontend is {library.__version__}, 1.32 is needed")
    except (ImportError, RuntimeError, OSError, AttributeError, ValueError) as error:
        cure = to_install("nvidia-cudnn-frontend nvidia-cudnn-cu13 cuda-bindings", "cudnn")
        raise DependencyError(
            f"cuDNN cannot be used ({error}); {cure}; or let the generated kernels do its work"
        ) from None
    return library


@dataclass(frozen=True, slots=True)
class Plan:
    """A request that is bound to an engine of cuDNN."""

    request: Request
    graph: Any
    workspace_bytes: int
    engine: int
    knobs: Mapping[str, int]


class Cudnn:
    """A handle on the current device. `library` is the frontend's module.

    `record` is what `record` gave in an earlier run. Unless `deterministic`, engines may sum in any
    order. Raises `CudnnError` for a record of another cuDNN, and `DependencyError` where cuDNN
    finds no GPU that it can use.
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
            raise DependencyError(f"cuDNN cannot be used on this GPU ({error})") from None
        self._end = weakref.finalize(self, _give_back, os.getpid(), library, self._handle)
        self._end.atexit = False  # CUDA is gone by then

    @property
    def record(self) -> dict[str, Any]:
        """The engine and the knobs of each request so far, in one piece, None where there was none:
        JSON."""
        return {"cudnn": self._version, "engines": dict(self._engines)}

    def build(self, request: Request, workspace_bytes: int, in_parts: bool = False) -> Plan | None:
        """A plan that needs no more than `workspace_bytes`; None where cuDNN has none.

        With `in_parts` the engine must also serve operands that are parts of larger tensors, so
        that it serves the node under every strategy, whichever operands each computes inside a
        concatenation. Raises `CudnnError` for a recorded engine that cannot be had again.
        """
        key = self._key(request, workspace_bytes, in_parts)
        if key not in self._plans:
            limit = workspace_bytes if request.kind == "backward" else None
            with _limited(limit):
                self._plans[key] = self._planned(request, workspace_bytes, in_parts)
        return self._plans[key]

    def _key(self, request: Request, workspace_bytes: int, in_parts: bool) -> str:
        """The signature of a request with what else decides which engine is chosen."""
        free = "" if self._deterministic else " any order"
        return signature(request, workspace_bytes) + " in parts" * in_parts + free

    def _planned(self, request: Request, workspace_bytes: int, in_parts: bool) -> Plan | None:
        """The plan by the engine that serves the request in one piece: how operands lie differs
        between strategies, and which engine computes decides the bits."""
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
                f"engine {found['engine']} of the record is not to be had for "
                f"{signature(request, workspace_bytes)}; is this another GPU? drop the record"
            )
        return plan

    def run(self, plan: Plan, addresses: Mapping[str, int], workspace: int, stream: int) -> None:
        """Enqueue a plan on tensors at these device addresses, by role.

        `workspace` is the address of `plan.workspace_bytes` bytes or more. Nothing is allocated, so
        a run can be captured into a CUDA graph after a first one outside of it.
        """
        roles = _numbers(plan.request)
        if addresses.keys() != roles.keys():
            raise CudnnError(f"addresses are of {sorted(roles)}, got {sorted(addresses)}")
        self._library.set_stream(self._handle, stream)
        pack = {number: addresses[role] for role, number in roles.items()}
        try:
            plan.graph.execute(pack, workspace=workspace, handle=self._handle)
        except Exception as error:
            key = signature(plan.request, plan.workspace_bytes)
            raise CudnnError(f"engine {plan.engine} does not run {key}: {error}") from None

    def close(self) -> None:
        """Give the handle back, as happens too when nobody uses this any more."""
        self._end()

    def _choose(self, request: Request, workspace_bytes: int, in_parts: bool) -> Plan | None:
        """The first engine of cuDNN's order that fits, and serves the request `in_parts` if so
        asked."""
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
            if plan is not None and (not in_parts or self._serves_parts(plan, workspace_bytes)):
                return plan
        return None

    def _serves_parts(self, plan: Plan, workspace_bytes: int) -> bool:
        found = {"engine": plan.engine, "knobs": plan.knobs}
        return self._with(spread(plan.request), found, workspace_bytes) is not None

    def _with(
        self, request: Request, found: Mapping[str, Any], workspace_bytes: int
    ) -> Plan | None:
        """The plan by an engine and its knobs; None where that does not take the request."""
        members = self._library.knob_type.__members__
        graph = self._described(request)
        if graph is None:
            return None
        try:
            knobs = {members[name]: number for name, number in found["knobs"].items()}
            graph.create_execution_plan(found["engine"], knobs)
            self._restrict(graph, request, workspace_bytes)
            index = graph.get_execution_plan_count() - 1
        except Exception:  # of a request or an engine that is not supported
            return None
        return self._at(graph, index, request, workspace_bytes)

    def _described(self, request: Request) -> Any:
        """The request as a graph of the frontend, or None where cuDNN has no words for it."""
        try:
            graph = _graph_of(self._library, self._handle, request, self._deterministic)
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
                refused.append(notes.TENSOR_CORE)  # there it is TF32
        graph.deselect_numeric_notes(refused)
        graph.deselect_workspace_greater_than(workspace_bytes)

    def _at(self, graph: Any, index: int, request: Request, workspace_bytes: int) -> Plan | None:
        """The plan at one place of the frontend's list, unless it is refused."""
        try:
            engine, knobs = graph.get_engine_and_knobs_at_index(index)
            if engine not in BACKEND_ENGINES:
                return None
            graph.build_plan_at_index(index)
            needed = int(graph.get_workspace_size_plan_at_index(index))
        except Exception:  # of a request or an engine that is not supported
            return None
        if needed > workspace_bytes:
            return None
        named = {knob.name: int(number) for knob, number in knobs.items()}
        return Plan(request, graph, needed, int(engine), named)


@contextmanager
def _limited(workspace_bytes: int | None) -> Iterator[None]:
    """Within, the frontend describes the gradient of attention with a workspace that grows with the
    number of rows where one that grows with its square is larger than this. One thread at a time:
    the environment is the process's."""
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
    """A forked child has no CUDA: the handle that it has a copy of is its parent's."""
    if os.getpid() == process:
        library.destroy_handle(handle)


def signature(request: Request, workspace_bytes: int) -> str:
    """A text for a request and the room for it, equal for equal ones only."""
    return f"{shown(request)} room={workspace_bytes}"


def shown(request: Request) -> str:
    """A request in words, equal for equal ones only."""
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


def _numbers(request: Request) -> dict[str, int]:
    """The number under which the frontend knows each tensor."""
    return {role: number for number, role in enumerate(request.tensors, 1)}


def _graph_of(library: Any, handle: Any, request: Request, deterministic: bool = True) -> Any:
    dtype = request.x.dtype if isinstance(request, ConvolutionRequest) else request.q.dtype
    wide = _data_type(library, float64 if dtype == float64 else float32)
    graph = library.pygraph(
        handle=handle,
        io_data_type=_data_type(library, dtype),
        intermediate_data_type=wide,
        compute_data_type=wide,
    )
    numbers = _numbers(request)
    read = {
        role: graph.tensor(
            dim=list(tensor.shape),
            stride=list(tensor.strides),
            data_type=_data_type(library, tensor.dtype),
            uid=numbers[role],
        )
        for role, tensor in request.tensors.items()
        if role not in request.written
    }
    if isinstance(request, ConvolutionRequest):
        results = _convolution(graph, request, read)
    else:
        results = _attention(library, graph, request, read, deterministic)
    for role, result in zip(request.written, results, strict=True):
        tensor = request.tensors[role]
        result.set_output(True).set_uid(numbers[role]).set_dim(list(tensor.shape))
        result.set_stride(list(tensor.strides))
        result.set_data_type(_data_type(library, tensor.dtype))
    return graph


def _convolution(graph: Any, request: ConvolutionRequest, read: Mapping[str, Any]) -> list[Any]:
    """Add a convolution, whose number of groups cuDNN takes from the channels of x and w."""
    geometry = {
        "pre_padding": list(request.padding[:2]),
        "post_padding": list(request.padding[-2:]),
        "stride": list(request.stride),
        "dilation": list(request.dilation),
    }
    if request.kind == "fprop":
        return [graph.conv_fprop(image=read["x"], weight=read["w"], **geometry)]
    if request.kind == "dgrad":
        return [graph.conv_dgrad(loss=read["y"], filter=read["w"], **geometry)]
    return [graph.conv_wgrad(image=read["x"], loss=read["y"], **geometry)]


def _attention(
    library: Any,
    graph: Any,
    request: AttentionRequest,
    read: Mapping[str, Any],
    deterministic: bool,
) -> list[Any]:
    """Add attention, whose causal mask ends at the last row and the last column."""
    options: dict[str, Any] = {"attn_scale": request.scale}
    if request.causal:
        ends = library.diagonal_alignment
        square = request.q.shape[2] == request.k.shape[2]
        options["diagonal_alignment"] = ends.TOP_LEFT if square else ends.BOTTOM_RIGHT
        options["diagonal_band_right_bound"] = 0
    operands = {role: read[role] for role in ("q", "k", "v")}
    if request.kind == "forward":
        return list(graph.sdpa(**operands, generate_stats=True, **options))
    return list(
        graph.sdpa_backward(
            **operands, o=read["y"], dO=read["dy"], stats=read["stats"],
            use_deterministic_algorithm=deterministic, **options,
        )
    )  # fmt: skip


def _data_type(library: Any, dtype: DType) -> Any:
    return getattr(library.data_type, DATA_TYPES[dtype])
