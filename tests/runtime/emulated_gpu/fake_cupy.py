"""As much of CuPy as the runtime uses, with the signatures of CuPy 14, on an emulated GPU.

The machine code that is loaded must be NVRTC's; what runs is the same kernel as C++.
"""

import contextlib
import ctypes
import types

import numpy as np
from codegen.fake_cublas import library
from runtime.emulated_gpu.emulated import EmulatedDevice

FREE, TOTAL = 3 * 2**30, 4 * 2**30
HOST_TO_DEVICE, DEVICE_TO_HOST, THREAD_LOCAL = 1, 2, 1


class CudaError(RuntimeError):
    pass


class FakeDevice(contextlib.nullcontext):
    attributes = {"ClockRate": 1_000_000, "MemoryClockRate": 2_000_000, "GlobalMemoryBusWidth": 512}


def runtime_of(count, driver=13010):
    """cupy.cuda.runtime as far as devices go; `count` may be an error."""

    def device_count():
        if isinstance(count, Exception):
            raise count
        return count

    return types.SimpleNamespace(
        CUDARuntimeError=CudaError,
        getDeviceCount=device_count,
        driverGetVersion=lambda: driver,
        runtimeGetVersion=lambda: 13020,
        getDeviceProperties=lambda n: {
            "name": b"Some GPU", "major": 9, "minor": n, "multiProcessorCount": 100,
            "uuid": bytes(range(1, 17)) + b"what lies behind it",
        },
        deviceGetPCIBusId=lambda n: f"0000:0{n}:00.0",
        memGetInfo=lambda: (FREE, TOTAL),
        memcpyHostToDevice=HOST_TO_DEVICE,
        memcpyDeviceToHost=DEVICE_TO_HOST,
        streamCaptureModeThreadLocal=THREAD_LOCAL,
    )  # fmt: skip


def fake_cupy(count, driver=13010):
    """CuPy on a machine with so many devices, none of which runs anything."""
    cuda = types.SimpleNamespace(runtime=runtime_of(count, driver), Device=FakeDevice)
    return types.SimpleNamespace(cuda=cuda, __version__="14.2.0")


class FakeCupy:
    """CuPy with one device that runs."""

    __version__ = "14.2.0"

    def __init__(self, kernels):
        self.emulated = emulated = EmulatedDevice()
        emulated.load_kernels(kernels)
        streams = {}

        class Memory:
            def __init__(self, size):
                if size > FREE:
                    raise CudaError("cudaErrorMemoryAllocation")
                self.ptr = emulated.allocate(size)

        class PinnedMemory:
            def __init__(self, size):
                if size > FREE:
                    raise CudaError("cudaErrorMemoryAllocation")
                self.array = emulated.pinned(size)

        class Stream:
            def __init__(self, null=False, non_blocking=False, ptds=False, priority=None):
                assert non_blocking
                self.own, self.ptr = emulated.stream(), 16 * (1 + len(streams))
                streams[self.ptr] = self.own

            def __enter__(self):
                return self

            def __exit__(self, *error):
                return None

            def wait_event(self, event):
                emulated.wait(self.own, event.own)

            def begin_capture(self, mode=None):
                assert mode == THREAD_LOCAL
                emulated.begin_capture(self.own)

            def end_capture(self):
                return Graph(emulated.end_capture(self.own))

        class Graph:
            def __init__(self, run):
                self.run, self.uploaded = run, False

            def upload(self, stream):
                self.uploaded = True

            def launch(self, stream):
                assert self.uploaded
                emulated.counts["replays"] += 1
                stream.own.add(self.run)

        class Event:
            def __init__(self, block=False, disable_timing=False, interprocess=False):
                self.is_timed = not disable_timing

            def record(self, stream):
                self.own = emulated.record(stream.own)

            def synchronize(self):
                emulated.synchronize(self.own)

            @property
            def elapsed(self):
                assert self.is_timed
                return 1e3 * self.own.at

            @property
            def done(self):
                emulated.synchronize(self.own)  # nothing runs unless somebody waits
                return True

        class Module:
            def load(self, cubin):
                assert cubin.startswith(b"\x7fELF")
                self.cubin = cubin

            def get_function(self, name):
                assert f".text.{name}\0".encode() in self.cubin

                def launch(grid, block, args, shared_mem=0, stream=None):
                    assert grid[1:] == block[1:] == (1, 1)
                    assert all(type(arg) in (int, np.uint32) for arg in args)
                    kernel = types.SimpleNamespace(name=name)
                    call = types.SimpleNamespace(
                        kernel=kernel, arguments=args, grid=grid[0], block=block[0]
                    )
                    emulated.run(call, stream.own)

                return launch

        def copy(target, source, size, kind, pointer):
            on_host = np.frombuffer((ctypes.c_ubyte * size).from_address(
                source if kind == HOST_TO_DEVICE else target), np.uint8)  # fmt: skip
            if emulated.capturing:  # pinned memory is all that may be captured
                first = on_host.ctypes.data
                pinned = [(array.ctypes.data, array.size) for array in emulated.pinned_arrays]
                assert any(at <= first and first + size <= at + length for at, length in pinned)
                streams[pointer].add(lambda: ctypes.memmove(target, source, size))
            elif kind == HOST_TO_DEVICE:
                emulated.upload(target, on_host, streams[pointer])
            else:
                emulated.download(on_host, source, streams[pointer])

        def fill(address, value, size, pointer):
            emulated.fill(address, size, value, streams[pointer])

        runtime = runtime_of(1)
        runtime.memcpyAsync, runtime.memsetAsync = copy, fill
        self.cuda = types.SimpleNamespace(
            runtime=runtime, Device=FakeDevice, Memory=Memory, PinnedMemory=PinnedMemory,
            PinnedMemoryPointer=lambda memory, offset: memory.array, Stream=Stream, Event=Event,
            function=types.SimpleNamespace(Module=Module),
            get_elapsed_time=lambda start, end: end.elapsed - start.elapsed,
        )  # fmt: skip
        self.cublaslt = QueuedLibrary(library(), streams)


class QueuedLibrary:
    """cuBLASLt whose products wait in the stream that they are given."""

    def __init__(self, library, streams):
        self.library, self.streams = library, streams

    def __getattr__(self, name):
        return QueuedFunction(self, getattr(self.library, name), name)


class QueuedFunction:
    def __init__(self, owner, function, name):
        object.__setattr__(self, "owner", owner)
        object.__setattr__(self, "function", function)
        object.__setattr__(self, "name", name)

    def __setattr__(self, name, types):
        setattr(self.function, name, types)

    def __call__(self, *arguments):
        if self.name != "cublasLtMatmul":
            return self.function(*arguments)

        def product():
            assert self.function(*arguments) == 0

        self.owner.streams[arguments[-1]].add(product)
        return 0
