"""The implementation of `Accelerator` with CuPy, cuBLASLt for products, and NCCL for ranks."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import socket
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.errors import ArenaError
from graphc.runtime.gpu.accelerator import Bytes, Event, Stream
from graphc.runtime.gpu.bind import (
    BoundCall,
    BoundCopy,
    BoundExchange,
    BoundGemm,
    BoundPlan,
    kernels_of,
)
from graphc.runtime.gpu.cubins import cubins
from graphc.runtime.gpu.cublaslt import LtProduct, NoAlgorithm, load_cublaslt
from graphc.runtime.gpu.device import Gpu, load_cupy
from graphc.runtime.gpu.nccl import Communicator
from graphc.runtime.gpu.products import Products

LIBRARY_BYTES = 512 * 2**20
"""The bytes reserved for CUDA, the code of kernels and tables of libraries. An arena is refused if
less than this would remain free."""


Active = Callable[[], AbstractContextManager[Any]]
"""A function that returns a context in which a GPU is the current one of the thread."""


class CudaDevice:
    """One GPU.

    Machine code of kernels is cached in the folder `cache`, unless it is None. `algorithms` is the
    record of an earlier run (`graphc.runtime.gpu.products`). `connect` connects this rank with
    other ranks, if there are any; its arguments are the identity of this GPU and `active`.

    Raises `GpuUnavailable` without CuPy or a device, and `DependencyError` without cuBLASLt. `load`
    raises `DependencyError` without NVRTC.
    """

    def __init__(
        self,
        gpu: Gpu,
        cache: Path | None = None,
        algorithms: Mapping[str, Any] | None = None,
        connect: Callable[[str, Active], Communicator] | None = None,
    ) -> None:
        self.gpu, self._cache = gpu, cache
        self._cupy = load_cupy()
        self._runtime = self._cupy.cuda.runtime
        self._device = self._cupy.cuda.Device(gpu.number)
        self._functions: dict[str, Any] = {}
        self._modules: list[Any] = []
        self._memory: list[Any] = []
        with self._device:
            self.products = Products(load_cublaslt(), algorithms)
        free = self.free_bytes() if connect else 0
        self._communicator = connect(self._identity(), self.active) if connect else None
        self.communication_bytes = free - self.free_bytes() if connect else 0
        """The decrease of free memory while NCCL connected: an estimate of what NCCL allocated."""
        self._bound: dict[int, tuple[BoundGemm, LtProduct]] = {}
        owned = os.getpid(), self._bound, self.products
        weakref.finalize(self, _give_back, *owned).atexit = False  # CUDA has shut down by then

    def _identity(self) -> str:
        """Return a text that is unique among all GPUs, including those of other machines."""
        number = self.gpu.number
        # Host names may be equal, hence the UUID; CuPy may return more than its 16 bytes.
        uuid = self._runtime.getDeviceProperties(number)["uuid"][:16].hex()
        return f"{socket.gethostname()} {self._runtime.deviceGetPCIBusId(number)} {uuid}"

    def active(self) -> AbstractContextManager[Any]:
        return self._device  # type: ignore[no-any-return]

    def free_bytes(self) -> int:
        """Return the bytes of free device memory."""
        with self._device:
            return int(self._runtime.memGetInfo()[0])

    def allocate(self, size: int) -> int:
        free = self.free_bytes()
        if size + LIBRARY_BYTES > free:
            raise self._does_not_fit(size, free)
        try:
            memory = self._cupy.cuda.Memory(size)  # one cudaMalloc, not from CuPy's pool
        except self._runtime.CUDARuntimeError:
            raise self._does_not_fit(size, free) from None
        self._memory.append(memory)
        return int(memory.ptr)

    def _does_not_fit(self, size: int, free: int) -> ArenaError:
        scratch = max(0, free - LIBRARY_BYTES) // 2**20
        return ArenaError(
            f"the plan needs an arena of {size} bytes ({format_bytes(size)}), but "
            f"cuda:{self.gpu.number} ({self.gpu.name}) has {format_bytes(free)} of "
            f"{format_bytes(self.gpu.memory_bytes)} free, including {format_bytes(LIBRARY_BYTES)} "
            f"for CUDA and its libraries; plan with budget='{scratch}MiB'"
        )

    def pinned(self, size: int) -> Bytes:
        try:
            allocated = self._cupy.cuda.PinnedMemory(max(size, 1))
        except self._runtime.CUDARuntimeError:
            raise ArenaError(
                f"this machine cannot allocate {size} bytes ({format_bytes(size)}) of pinned host "
                "memory; free memory, raise the limit of locked memory, or copy less to the host"
            ) from None
        memory = self._cupy.cuda.PinnedMemoryPointer(allocated, 0)
        self._memory.append(memory)
        return np.frombuffer(memory, np.uint8, size)

    def serves(self, call: BoundGemm) -> bool:
        try:
            with self._device:
                product = self.products.bind(
                    call.gemm, call.addresses, call.workspace, call.workspace_bytes
                )
        except NoAlgorithm:
            return False
        self._bound[id(call)] = call, product  # keeps the call alive, so its id stays unique
        return True

    def load(self, calls: Iterable[BoundCall]) -> None:
        wanted = [kernel for kernel in kernels_of(calls) if kernel.name not in self._functions]
        for name, code in cubins(wanted, self.gpu.architecture, self._cache).items():
            module = self._cupy.cuda.function.Module()
            module.load(code)
            self._modules.append(module)
            self._functions[name] = module.get_function(name)

    def stream(self) -> Stream:
        return self._cupy.cuda.Stream(non_blocking=True)

    def run(self, call: BoundCall, stream: Stream) -> None:
        if isinstance(call, BoundGemm):
            self._bound[id(call)][1].run(stream.ptr)
            return
        if isinstance(call, BoundPlan):
            call.library.run(call.plan, call.addresses, call.workspace, stream.ptr)
            return
        if isinstance(call, BoundExchange):
            assert self._communicator is not None, "who binds a plan of several ranks connects them"
            self._communicator.run(call, stream.ptr)
            return
        if isinstance(call, BoundCopy):
            way = "DeviceToHost" if call.copy.to == "host" else "HostToDevice"
            self._copy(call.y, call.x, call.copy.bytes, way, stream)
            return
        function = self._functions[call.kernel.name]
        function((call.grid, 1, 1), (call.block, 1, 1), call.arguments, stream=stream)

    def fill(self, address: int, size: int, byte: int, stream: Stream) -> None:
        self._runtime.memsetAsync(address, byte, size, stream.ptr)

    def upload(self, address: int, source: Bytes, stream: Stream) -> None:
        self._copy(address, source.ctypes.data, source.size, "HostToDevice", stream)

    def download(self, target: Bytes, address: int, stream: Stream) -> None:
        self._copy(target.ctypes.data, address, target.size, "DeviceToHost", stream)

    def copy(self, target: int, source: int, size: int, stream: Stream) -> None:
        self._copy(target, source, size, "DeviceToDevice", stream)

    def _copy(self, target: int, source: int, size: int, direction: str, stream: Stream) -> None:
        kind = getattr(self._runtime, f"memcpy{direction}")
        self._runtime.memcpyAsync(target, source, size, kind, stream.ptr)

    def record(self, stream: Stream) -> Event:
        event = self._cupy.cuda.Event(block=False, disable_timing=True)
        event.record(stream)
        return event

    def mark(self, stream: Stream) -> Event:
        event = self._cupy.cuda.Event()
        event.record(stream)
        return event

    def seconds_between(self, start: Event, end: Event) -> float:
        return float(self._cupy.cuda.get_elapsed_time(start, end)) / 1e3

    def wait(self, stream: Stream, event: Event) -> None:
        stream.wait_event(event)

    def synchronize(self, event: Event) -> None:
        if self._communicator is None:
            event.synchronize()
        else:
            self._communicator.wait(lambda: bool(event.done))

    def capture(self, stream: Stream, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Capture enqueued work in thread-local mode, in which an allocation is an error."""
        with stream, _collection_paused():
            stream.begin_capture(mode=self._runtime.streamCaptureModeThreadLocal)
            try:
                enqueue()
            except BaseException:
                with suppress(Exception):  # the first error is the one to report
                    stream.end_capture()
                raise
            graph = stream.end_capture()
        graph.upload(stream)

        def replay() -> None:
            if self._communicator is not None:
                self._communicator.require()
            graph.launch(stream)

        return replay

    def versions(self) -> dict[str, str]:
        """Return the versions of packages on which measurements depend."""
        packages = ("cupy-cuda13x", "nvidia-cublas", "nvidia-cuda-nvrtc", "numpy")
        return {name: _installed(name) for name in packages}


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Pause garbage collection: it may free device memory, which would end a capture."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _give_back(
    process: int, bound: dict[int, tuple[BoundGemm, LtProduct]], products: Products
) -> None:
    """Free the library objects of a device that is no longer used.

    Does nothing in a forked child: the objects belong to the parent process, and CUDA does not work
    in the child.
    """
    if os.getpid() != process:
        return
    for _, product in bound.values():
        product.close()
    products.close()


def _installed(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"
