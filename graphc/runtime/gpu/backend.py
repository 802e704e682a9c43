"""The GPU backend: one allocation, and a step that is captured once and replayed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Self, get_args

import numpy as np

from graphc.codegen.cudnn_request import Request
from graphc.codegen.text.operands import Place
from graphc.errors import NonFiniteError, level_of_caller
from graphc.ir.graph import Input, State, Value
from graphc.ir.types import Layout, span_bytes
from graphc.plans.memory_plan import MemoryPlan, Way
from graphc.plans.streams import StreamSlot
from graphc.runtime.arena import unallocated
from graphc.runtime.backend import Outputs, Report, Staged
from graphc.runtime.gpu.accelerator import Accelerator, Event, Stream
from graphc.runtime.gpu.bind import (
    BoundCopy,
    BoundExchange,
    BoundGemm,
    BoundLaunch,
    BoundPlan,
    Work,
    bind,
    slots_of_works,
)
from graphc.runtime.gpu.cudnn import Cudnn
from graphc.runtime.gpu.cudnn import shown as cudnn_shown
from graphc.runtime.gpu.places import places_of_plan, slots_of_plan
from graphc.runtime.gpu.products import shown
from graphc.runtime.gpu.staging import Arrivals, Departures, Fetched, arranged
from graphc.runtime.padding import Padded
from graphc.runtime.poison import POISON, empty_at_start, freed_after

Array = np.ndarray[Any, np.dtype[Any]]

START = -1
"""The key of the event that precedes the first call of a step."""


class GpuBackend:
    """Kernels and library calls bound to addresses of one allocation.

    The first step runs call by call, while libraries initialize and code is loaded. The second step
    is captured as a CUDA graph, and it and all later steps replay the graph, unless `cuda_graph` is
    False. Nodes run on the streams of the plan, collectives and copies on streams of their own.
    `poison` and `check_finite` are for debugging: steps then run call by call on one stream.

    With `cudnn`, cuDNN computes the convolutions and attention that it supports. A warning lists
    products that cuBLASLt does not support; `report` lists all requests that libraries decline.

    `lent` maps the indices of state buffers to addresses in the arena of another program. `within`
    is a program whose whole arena this one uses. Each captures its own CUDA graph, which allocates
    nothing. Raises `ArenaError` if the arena does not fit.
    """

    def __init__(
        self,
        plan: MemoryPlan,
        accelerator: Accelerator,
        *,
        cuda_graph: bool = True,
        poison: bool = False,
        check_finite: bool = False,
        cudnn: Cudnn | None = None,
        lent: Mapping[int, int] | None = None,
        within: Self | None = None,
    ) -> None:
        self.plan, self._accelerator = plan, accelerator
        self._poison, self._check_finite = poison, check_finite
        debugging = poison or check_finite
        self._captures = cuda_graph and not debugging
        with accelerator.active():
            self._unallocated = unallocated(plan, lent or {})
            start = accelerator.allocate(self.arena_bytes) if within is None else within._base
            self._base: int = start - self._unallocated.bytes
            own = {index: self._base + at for index, at in self._unallocated.offsets.items()}
            self._host = accelerator.pinned(plan.host_bytes) if plan.host_bytes else None
            self._elsewhere = {**own, **(lent or {}), **self._on_host()}
            self._places = places_of_plan(plan, self._base, self._elsewhere)
            self._works = self._ready(cudnn, together=not debugging)
            self._slots = slots_of_works(plan, self._works, alone=debugging)
            count = 1 + max((slot.stream for slot in self._slots), default=0)
            self._streams = [accelerator.stream() for _ in range(count)]
            arriving, leaving = (
                slots_of_plan(plan, self._places, self._base, way) for way in get_args(Way)
            )
            graph, places = plan.graph, self._places
            self._arrivals = Arrivals(accelerator, graph.inputs, places, arriving)
            self._departures = Departures(accelerator, graph.outputs, places, leaving)
        self.runs_ahead = bool(leaving)
        self._awaited = {other for slot in self._slots for other in slot.waits}
        self._first_update = _first_update(self._works)
        self.is_torn, self._is_settled = False, True
        self._together: list[Self] = [] if within is None else within._together
        self._together.append(self)
        self._replay: Callable[[], None] | None = None
        self._is_warm = False

    def _ready(self, cudnn: Cudnn | None, together: bool) -> list[Work]:
        """Bind the nodes of a plan to calls, and compile and load the code of all calls."""
        products: dict[str, None] = {}
        requests: dict[str, None] = {}

        def serves(product: BoundGemm) -> bool:
            is_served = self._accelerator.serves(product)
            if not is_served:
                products[shown(product.gemm)] = None
            return is_served

        def declines(request: Request) -> None:
            requests[cudnn_shown(request)] = None

        tf32 = self.plan.settings.get("precision") == "tf32"
        works = bind(
            self.plan, self._base, tf32, cudnn, together=together, serves=serves,
            declines=declines, elsewhere=self._elsewhere,
        )  # fmt: skip
        kinds = {
            BoundLaunch: "kernels",
            BoundGemm: "cublaslt",
            BoundPlan: "cudnn",
            BoundExchange: "nccl",
            BoundCopy: "copies",
        }
        rare = ("nccl", "copies")
        counts = Counter(kinds[type(call)] for work in works for call in work.calls)
        self.report = Report(
            {kind: counts[kind] for kind in kinds.values() if kind not in rare or counts[kind]},
            (*products, *requests),
        )
        if products:
            first, *others = products
            warnings.warn(
                f"cuBLASLt has no algorithm for {first}"
                + (f" and {len(others)} others" if others else "")
                + ": slower kernels generated by graphc compute these products or their epilogues",
                stacklevel=level_of_caller(),
            )
        self._accelerator.load(call for work in works for call in work.calls)
        return works

    @property
    def arena_bytes(self) -> int:
        return self.plan.arena_bytes - self._unallocated.bytes

    @property
    def host_bytes(self) -> int:
        return self.plan.host_bytes

    def _on_host(self) -> dict[int, int]:
        """Map the indices of buffers on the host to their addresses in pinned memory."""
        start = self._host_base
        found = (buffer for buffer in self.plan.buffers if buffer.kind == "host")
        return {buffer.index: start + buffer.offset for buffer in found}

    @property
    def _host_base(self) -> int:
        """The address of offset 0 of the plan, by the addresses of host memory."""
        address = 0 if self._host is None else int(self._host.ctypes.data)
        return address - self.plan.host_start

    @property
    def communication_bytes(self) -> int:
        return self._accelerator.communication_bytes

    @property
    def kept_bytes(self) -> int:
        return sum(state.type.bytes for state in self._kept)

    @property
    def _kept(self) -> Sequence[State]:
        """The states that must be restored if a step fails."""
        states = self.plan.graph.states if self._check_finite else ()
        return [state for state in states if state.role != "constant"]

    @property
    def accelerator(self) -> Accelerator:
        """The GPU that the plan is bound to."""
        return self._accelerator

    @property
    def works(self) -> Sequence[Work]:
        """The calls of a step in order, grouped by node (`Work`)."""
        return self._works

    @property
    def stream(self) -> Stream:
        """The stream that a step starts and ends on."""
        return self._streams[0]

    def read(self, state: State) -> Array:
        with self._accelerator.active():
            self._settle()
            return self._fetched(state)

    def write(self, state: State, given: Array) -> None:
        with self._accelerator.active():
            self._settle()
            if state.on_host:
                self._synchronize()
                self._array_on_host(state)[...] = given
                return
            place = self._places[state]
            memory = np.zeros(span_bytes(state.type, Layout(0, place.strides)), np.uint8)
            arranged(memory, state, place)[...] = given
            self._accelerator.upload(place.address, memory, self.stream)
            self._synchronize()

    def buffer(self, state: State) -> Any:
        return self._places[state].address - self.plan.placements[state].offset

    def stage(self, feeds: Mapping[Input, Array | Padded]) -> Staged:
        with self._accelerator.active():
            return self._arrivals.stage(feeds)

    def submit(self, staged: Staged) -> Outputs:
        with self._accelerator.active():
            self._settle()
            self._is_settled = False
            self._arrivals.feed(staged, self.stream)
            self._run()
            fetched = self._departures.fetch(self.stream)
            self._is_settled = True
        return lambda: self._outputs(fetched)

    def repeat(self) -> None:
        """Enqueue a step on the current contents of the arena, without feeds and outputs.

        This is for measurements. Inputs that are also outputs keep their values. The bytes of other
        inputs may have been overwritten by the last step.
        """
        with self._accelerator.active():
            self._settle()
            self._is_settled = False
            self._run()
            self._is_settled = True

    def _settle(self) -> None:
        """Wait for all streams if a step in this arena was aborted before its streams joined."""
        for backend in self._together:
            if not backend._is_settled:
                copying = (backend._arrivals.stream, backend._departures.stream)
                for stream in (*backend._streams, *filter(None, copying)):
                    self._accelerator.synchronize(self._accelerator.record(stream))
                backend._is_settled = True

    def _outputs(self, fetched: Fetched) -> dict[str, Array]:
        try:
            with self._accelerator.active():
                return self._departures.outputs(fetched)
        except Exception:  # errors of kernels are raised here; how far the step came is unknown
            self.is_torn = bool(self.plan.graph.effects)
            raise

    def _run(self) -> None:
        if self._poison or self._check_finite:
            self._run_checked()
        elif not self._captures or not self._is_warm:
            self._enqueue()
            self._is_warm = True
        else:
            if self._replay is None:
                self._replay = self._captured()
            self._begin_updates()
            self._replay()
            self.is_torn = False

    def _captured(self) -> Callable[[], None]:
        """Capture the step as a CUDA graph, and return a function that launches it.

        No kernel runs meanwhile, so states are intact if this fails.
        """
        try:
            return self._accelerator.capture(self.stream, self._enqueue)
        except BaseException:
            self.is_torn = False
            raise

    def _begin_updates(self) -> None:
        self.is_torn = self._first_update < len(self._works)

    def _enqueue(self) -> None:
        """Enqueue all calls on their streams, which fork from the main stream and join it again.

        Events are kept until all calls are enqueued, since destroying one would end a capture.
        """
        accelerator = self._accelerator
        events: dict[int, Event] = {}
        if len(self._streams) > 1:
            events[START] = accelerator.record(self.stream)
            for stream in self._streams[1:]:
                accelerator.wait(stream, events[START])
        self._enqueue_works(range(self._first_update), events)
        self._begin_updates()
        self._enqueue_works(range(self._first_update, len(self._works)), events)
        ends = [accelerator.record(stream) for stream in self._streams[1:]]
        for end in ends:
            accelerator.wait(self.stream, end)
        self.is_torn = False

    def _enqueue_works(self, numbers: Iterable[int], events: dict[int, Event]) -> None:
        for number in numbers:
            slot = self._slots[number]
            self._work(self._works[number], slot, events)
            if number in self._awaited:
                events[number] = self._accelerator.record(self._streams[slot.stream])

    def _work(self, work: Work, slot: StreamSlot, events: Mapping[int, Event]) -> None:
        stream = self._streams[slot.stream]
        for other in slot.waits:
            self._accelerator.wait(stream, events[other])
        for call in work.calls:
            self._accelerator.run(call, stream)

    def _run_checked(self) -> None:
        """Run a step call by call; with `check_finite`, restore states if it is interrupted."""
        kept = {state: self._fetched(state) for state in self._kept}
        try:
            self._run_one_by_one()
        except BaseException:
            if self.is_torn and kept:
                for state, array in kept.items():
                    self.write(state, array)
                self.is_torn = False
            raise
        self.is_torn = False

    def _run_one_by_one(self) -> None:
        """Run calls node by node, poison dead bytes, and check that results are finite."""
        freed = freed_after(self.plan) if self._poison else {}
        self._fill(empty_at_start(self.plan) if self._poison else ())
        works = {work.step: work for work in self._works}
        for step, node in enumerate(self.plan.graph.nodes):
            if node.op.has_effect:
                self.is_torn = True
            if step in works:
                self._work(works[step], StreamSlot(0, ()), {})
                if self._check_finite:
                    self._require_finite(works[step])
            self._fill(freed.get(step, ()))

    def _fill(self, spans: Iterable[tuple[int, int]]) -> None:
        for span in spans:
            first, last = (max(offset, self._unallocated.end) for offset in span)
            base = self._base if first < self.plan.host_start else self._host_base
            if first < last:
                self._accelerator.fill(base + first, last - first, POISON, self.stream)

    def _require_finite(self, work: Work) -> None:
        (node,) = work.nodes
        for value in node.outputs:
            if value.type.dtype.kind != "float" or node.host_copy is not None:
                continue
            if not np.isfinite(self._fetched(value).astype(np.float64)).all():
                raise NonFiniteError(
                    f"{self.plan.graph.names[value]} {value.type}, computed by {node.label}, "
                    "contains NaN or infinity"
                )

    def _fetched(self, value: Value) -> Array:
        """Copy the current contents of a value to the host."""
        if value.on_host:
            self._synchronize()
            return self._array_on_host(value).copy()
        place: Place = self._places[value]
        memory = np.empty(span_bytes(value.type, Layout(0, place.strides)), np.uint8)
        self._accelerator.download(memory, place.address, self.stream)
        self._synchronize()
        return arranged(memory, value, place).copy()

    def _synchronize(self) -> None:
        """Wait for all work of the main stream, which joins the other streams after each step."""
        self._accelerator.synchronize(self._accelerator.record(self.stream))

    def _array_on_host(self, value: Value) -> Array:
        """Return a view of a value in pinned memory."""
        assert self._host is not None, "a plan with values on the host has host memory"
        place = self._places[value]
        first = place.address - int(self._host.ctypes.data)
        size = span_bytes(value.type, Layout(0, place.strides))
        return arranged(self._host[first : first + size], value, place)


def _first_update(works: Sequence[Work]) -> int:
    """Return the index of the first entry of `works` that updates a state, or `len(works)`."""
    updates = (
        number for number, work in enumerate(works) if any(n.op.has_effect for n in work.nodes)
    )
    return next(updates, len(works))
