"""A GPU on the CPU: generated kernels as C++, a stand-in for cuBLAS, and streams that run in any
order that their events allow.

What is enqueued runs when somebody waits for an event, stream by stream in a random order. Memory
around the arena is watched. While a graph is captured, what CUDA refuses is refused.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from collections import deque

import numpy as np
from codegen.fake_cublas import StandIn
from codegen.on_cpu import Library

from graphc.runtime import bind
from graphc.runtime.gpu.bind import BoundCopy, BoundExchange, BoundGemm, BoundPlan, kernels_of
from graphc.runtime.gpu.device import Gpu

ONE_AT_A_TIME = threading.Lock()
"""Kernels as C++ have their numbers of threads and blocks in globals."""

H200 = Gpu(0, "an emulated H200", 90, 2**37, 2**37, 67e12, 4800e9)
GUARD = 4096
GUARD_BYTE = 0xA5


def emulate(monkeypatch, edit=None):
    """Run programs for a GPU on an emulated one."""
    monkeypatch.setattr(bind, "find_gpu", lambda number: H200)
    monkeypatch.setattr(bind, "CudaDevice", lambda *given: EmulatedDevice(edit=edit))


class Event:
    def __init__(self, captured):
        self.happened, self.captured = False, captured
        self.at = None

    def happen(self):
        self.happened, self.at = True, time.perf_counter()


class Stream:
    def __init__(self):
        self.queue = deque()
        self.captured = None

    def add(self, item):
        (self.queue if self.captured is None else self.captured).append(item)


def may_run(item):
    return callable(item) or item[0] == "record" or item[1].happened


class Kernels:
    """Kernels as C++, compiled when one of them runs: those of all programs loaded so far at once.

    Devices that share kernels compile each once. `edit` may break the text of kernels.
    """

    def __init__(self, edit=None):
        self.edit = edit or (lambda text: text)
        self.waiting, self.libraries = {}, {}

    def add(self, kernels):
        new = {each.name: each for each in kernels if each.name not in self.libraries}
        self.waiting.update(new)

    def function(self, name):
        if name in self.waiting:
            library = Library(self.waiting.values(), self.edit)
            self.libraries |= dict.fromkeys(self.waiting, library)
            self.waiting = {}
        return getattr(self.libraries[name].functions, f"run_{name}")


class EmulatedDevice:
    """Implements `graphc.runtime.gpu.accelerator.Accelerator`."""

    shared = None
    """Kernels that all devices share whose text is not edited; None: each has its own."""

    def __init__(self, seed=0, edit=None):
        self.kernels = self.shared if self.shared and edit is None else Kernels(edit)
        self.products, self.bound = StandIn(), {}
        self.declines = lambda gemm: False
        self.communicator, self.communication_bytes = None, 0
        self.random = random.Random(seed)
        self.streams, self.allocations = [], []
        self.arenas, self.pinned_arrays = [], []
        self.capturing = False
        self.counts = dict.fromkeys(
            ("calls", "cudnn", "captures", "replays", "pinned", "copies", "host copies"), 0
        )

    def active(self):
        return contextlib.nullcontext()

    def allocate(self, size):
        assert not self.capturing
        whole = np.full(size + 2 * GUARD + 512, GUARD_BYTE, np.uint8)
        skip = GUARD + -(whole.ctypes.data + GUARD) % 512
        whole[skip : skip + size] = 0xFF
        self.arenas.append((whole, skip, skip + size))
        self.allocations.append(size)
        return whole.ctypes.data + skip

    def pinned(self, size):
        assert not self.capturing
        self.counts["pinned"] += 1
        whole = np.full(size + 2 * GUARD, GUARD_BYTE, np.uint8)
        whole[GUARD : GUARD + size] = 0
        self.arenas.append((whole, GUARD, GUARD + size))
        self.pinned_arrays.append(whole[GUARD : GUARD + size])
        return self.pinned_arrays[-1]

    def serves(self, call):
        assert not self.capturing
        if self.declines(call.gemm):
            return False
        place = call.workspace, call.workspace_bytes
        self.bound[id(call)] = call, self.products.bind(call.gemm, call.addresses, *place)
        return True

    def load(self, calls):
        assert not self.capturing
        self.load_kernels(kernels_of(calls))

    def load_kernels(self, kernels):
        self.kernels.add(kernels)

    def stream(self):
        self.streams.append(Stream())
        return self.streams[-1]

    def run(self, call, stream):
        self.counts["calls"] += 1
        stream.add(lambda: self.call(call))

    def call(self, call):
        if isinstance(call, BoundExchange):  # others' devices are threads that run meanwhile
            self.communicator.run(call, 0)
            return
        if isinstance(call, BoundCopy):
            self.copy_beside(call)
            return
        with ONE_AT_A_TIME:
            self.compute(call)

    def copy_beside(self, call):
        """Copies to pinned memory, and from there."""
        host = call.y if call.copy.to == "host" else call.x
        starts = [(array.ctypes.data, array.size) for array in self.pinned_arrays]
        assert any(a <= host and host + call.copy.bytes <= a + size for a, size in starts)
        self.counts["host copies"] += 1
        ctypes.memmove(call.y, call.x, call.copy.bytes)

    def compute(self, call):
        if isinstance(call, BoundGemm):
            address, end = call.workspace, call.workspace + call.workspace_bytes
            ctypes.memset(address, 0xFF, end - address)  # a library may write there
            self.bound[id(call)][1].run(0)
            return
        if isinstance(call, BoundPlan):
            call.library.run(call.plan, call.addresses, call.workspace, 1)
            self.counts["cudnn"] += 1
            return
        function = self.kernels.function(call.kernel.name)
        pointers = (ctypes.c_void_p * len(call.arguments))(*map(int, call.arguments))
        assert function(pointers, call.grid, call.block, self.random.randrange(2)) == 0

    def fill(self, address, size, byte, stream):
        stream.add(lambda: ctypes.memset(address, byte, size))

    def upload(self, address, source, stream):
        assert not self.capturing
        stream.add(lambda: ctypes.memmove(address, source.ctypes.data, source.size))

    def download(self, target, address, stream):
        assert not self.capturing
        stream.add(lambda: ctypes.memmove(target.ctypes.data, address, target.size))

    def copy(self, target, source, size, stream):
        assert not self.capturing
        assert abs(target - source) >= size
        self.counts["copies"] += 1
        stream.add(lambda: ctypes.memmove(target, source, size))

    def record(self, stream):
        event = Event(self.capturing)
        stream.add(("record", event))
        return event

    mark = record

    def seconds_between(self, start, end):
        assert start.happened
        assert end.happened
        return end.at - start.at

    def wait(self, stream, event):
        assert event.captured == self.capturing, "an event of another capture"
        if self.capturing and stream.captured is None:
            stream.captured = deque()  # it joins the capture by waiting
        stream.add(("wait", event))

    def synchronize(self, event):
        assert not self.capturing
        while not event.happened:
            self.advance([stream.queue for stream in self.streams])
        for whole, low, high in self.arenas:
            around = np.concatenate([whole[:low], whole[high:]])
            assert (around == GUARD_BYTE).all(), "something was written outside the arena"

    def advance(self, queues):
        """Run the first item of some queue that may run."""
        ready = [q for q in queues if q and may_run(q[0])]
        assert ready, "streams wait for each other"
        item = self.random.choice(ready).popleft()
        if callable(item):
            item()
        elif item[0] == "record":
            item[1].happen()

    def capture(self, stream, enqueue):
        self.begin_capture(stream)
        try:
            enqueue()
        except BaseException:
            self.abandon_capture()
            raise
        launch = self.end_capture(stream)

        def replay():
            self.counts["replays"] += 1
            stream.add(launch)

        return replay

    def begin_capture(self, stream):
        self.counts["captures"] += 1
        self.capturing, stream.captured = True, deque()

    def abandon_capture(self):
        for stream in self.streams:
            stream.captured = None
        self.capturing = False

    def end_capture(self, stream):
        """What runs the captured items, in any order that their events allow."""
        used = [(s, s.captured) for s in self.streams if s.captured is not None]
        for other, _ in used:
            other.captured = None
        self.capturing = False
        (own,) = [items for other, items in used if other is stream]
        joined = {item[1] for item in own if not callable(item) and item[0] == "wait"}
        for other, items in used:
            assert other is stream or items[-1][1] in joined, "a stream is not joined"
        graph = [items for _, items in used]

        def launch():
            queues = [deque(items) for items in graph]
            for item in (item for items in graph for item in items):
                if not callable(item):
                    item[1].happened = False
            while any(queues):
                self.advance(queues)

        return launch
