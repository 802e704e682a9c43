"""Concurrent execution of rows of the step table by a stream schedule.

A plan with streams has the dependences between its nodes (plans/streams.py). The threads of the one
pool (step_table.py) scan the streams for a row whose dependences are satisfied, take pieces of it,
and scan again. Each thread scans from a stream of its own. Small kernels therefore run
concurrently, threads without other work share large kernels, and no thread waits for a whole
stream. The result of a piece depends neither on the thread nor on its time.

Multithreaded oneDNN primitives and NumPy calls, which hold Python's global lock, run alone.
"""

from __future__ import annotations

import ctypes
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from graphc.codegen.llvm.kernel import NativeKernel
from graphc.errors import GraphcError
from graphc.ir.graph import Node
from graphc.plans.streams import StreamSlot
from graphc.runtime.cpu import llvm
from graphc.runtime.cpu.native import Rows
from graphc.runtime.cpu.step_table import ROW, ROW_TYPE, StepTable, address_of, called, openmp
from graphc.runtime.kernel_files import cache_folder

Call = Callable[[], Any]

ENTRY = np.dtype(
    [
        ("row", np.uint64),
        ("needs", np.uint64),  # number of rows of each stream that must have finished
        ("share", np.int64),  # number of pieces that a thread takes at a time
        ("next", np.int64),  # the first piece that no thread has taken yet
        ("done", np.int64),  # number of finished pieces
    ]
)
"""The state of one row of the step table while its stretch runs; each field has eight bytes."""

LOOKS = 256
"""The number of times that a thread scans for work before it yields its processor."""

_LOOP = f"""
{ROW_TYPE}
%entry = type {{ ptr, ptr, i64, i64, i64 }}
%stretch = type {{ i64, ptr, ptr, ptr, i64, i64, ptr, ptr }}

define internal i1 @may.begin(ptr %needs, ptr %progress, i64 %streams) {{
entry:
  br label %look

look:
  %stream = phi i64 [ 0, %entry ], [ %following, %over ]
  %ends = icmp sge i64 %stream, %streams
  br i1 %ends, label %yes, label %compare

compare:
  %needed.at = getelementptr i64, ptr %needs, i64 %stream
  %needed = load i64, ptr %needed.at
  %reached.at = getelementptr i64, ptr %progress, i64 %stream
  %reached = load atomic i64, ptr %reached.at acquire, align 8
  %waits = icmp slt i64 %reached, %needed
  br i1 %waits, label %no, label %over

over:
  %following = add i64 %stream, 1
  br label %look

yes:
  ret i1 1

no:
  ret i1 0
}}

define internal void @worker(ptr %stretch) {{
entry:
  %streams = load i64, ptr %stretch
  %entries.at = getelementptr %stretch, ptr %stretch, i32 0, i32 1
  %entries = load ptr, ptr %entries.at
  %counts.at = getelementptr %stretch, ptr %stretch, i32 0, i32 2
  %counts = load ptr, ptr %counts.at
  %progress.at = getelementptr %stretch, ptr %stretch, i32 0, i32 3
  %progress = load ptr, ptr %progress.at
  %ticket.at = getelementptr %stretch, ptr %stretch, i32 0, i32 4
  %ticket = atomicrmw add ptr %ticket.at, i64 1 seq_cst
  %own = urem i64 %ticket, %streams
  %failed.at = getelementptr %stretch, ptr %stretch, i32 0, i32 5
  %execute.at = getelementptr %stretch, ptr %stretch, i32 0, i32 6
  %execute = load ptr, ptr %execute.at
  %yield.at = getelementptr %stretch, ptr %stretch, i32 0, i32 7
  %yield = load ptr, ptr %yield.at
  br label %scan

scan:
  %looks = phi i64 [ 0, %entry ], [ 0, %worked ], [ %more.looks, %again ]
  br label %stream

stream:
  %seen = phi i64 [ 0, %scan ], [ %seen.more, %skip ]
  %ended = phi i64 [ 0, %scan ], [ %ended.more, %skip ]
  %all.seen = icmp sge i64 %seen, %streams
  br i1 %all.seen, label %idle, label %look

look:
  %turned = add i64 %own, %seen
  %index = urem i64 %turned, %streams
  %reached.at = getelementptr i64, ptr %progress, i64 %index
  %reached = load atomic i64, ptr %reached.at acquire, align 8
  %count.at = getelementptr i64, ptr %counts, i64 %index
  %count = load i64, ptr %count.at
  %is.ended = icmp sge i64 %reached, %count
  br i1 %is.ended, label %over, label %head

over:
  br label %skip

head:
  %list.at = getelementptr ptr, ptr %entries, i64 %index
  %list = load ptr, ptr %list.at
  %entry.at = getelementptr %entry, ptr %list, i64 %reached
  %next.at = getelementptr %entry, ptr %entry.at, i32 0, i32 3
  %taken = load atomic i64, ptr %next.at monotonic, align 8
  %row = load ptr, ptr %entry.at
  %pieces.at = getelementptr %row, ptr %row, i32 0, i32 3
  %given = load i64, ptr %pieces.at
  %function = load ptr, ptr %row
  %is.primitive = icmp eq ptr %function, null
  %pieces = select i1 %is.primitive, i64 1, i64 %given
  %is.taken = icmp sge i64 %taken, %pieces
  br i1 %is.taken, label %busy, label %ready

ready:
  %needs.at = getelementptr %entry, ptr %entry.at, i32 0, i32 1
  %needs = load ptr, ptr %needs.at
  %may = call i1 @may.begin(ptr %needs, ptr %progress, i64 %streams)
  br i1 %may, label %take, label %busy

busy:
  br label %skip

skip:
  %one.more = phi i64 [ 1, %over ], [ 0, %busy ], [ 0, %late ]
  %ended.more = add i64 %ended, %one.more
  %seen.more = add i64 %seen, 1
  br label %stream

take:
  %share.at = getelementptr %entry, ptr %entry.at, i32 0, i32 2
  %share = load i64, ptr %share.at
  %begin = atomicrmw add ptr %next.at, i64 %share seq_cst
  %is.late = icmp sge i64 %begin, %pieces
  br i1 %is.late, label %late, label %run

late:
  br label %skip

run:
  %far = add i64 %begin, %share
  %beyond = icmp sgt i64 %far, %pieces
  %end = select i1 %beyond, i64 %pieces, i64 %far
  %first.at = getelementptr %row, ptr %row, i32 0, i32 1
  %first = load ptr, ptr %first.at
  %second.at = getelementptr %row, ptr %row, i32 0, i32 2
  %second = load ptr, ptr %second.at
  br i1 %is.primitive, label %primitive, label %kernel

primitive:
  %arguments.count = trunc i64 %given to i32
  %arguments.at = getelementptr %row, ptr %row, i32 0, i32 5
  %arguments = load ptr, ptr %arguments.at
  %status = call i32 %execute(ptr %first, ptr %second, i32 %arguments.count, ptr %arguments)
  %is.refused = icmp ne i32 %status, 0
  br i1 %is.refused, label %refused, label %finish

refused:
  %row.number = ptrtoint ptr %row to i64
  store atomic i64 %row.number, ptr %failed.at release, align 8
  ret void

kernel:
  call void %function(ptr %first, ptr %second, i64 %begin, i64 %end)
  br label %finish

finish:
  %did = sub i64 %end, %begin
  %done.at = getelementptr %entry, ptr %entry.at, i32 0, i32 4
  %before = atomicrmw add ptr %done.at, i64 %did seq_cst
  %done = add i64 %before, %did
  %is.whole = icmp eq i64 %done, %pieces
  br i1 %is.whole, label %advance, label %worked

advance:
  %after = add i64 %reached, 1
  store atomic i64 %after, ptr %reached.at release, align 8
  br label %worked

worked:
  br label %scan

idle:
  %all.ended = icmp eq i64 %ended, %streams
  br i1 %all.ended, label %return, label %check

check:
  %failed = load atomic i64, ptr %failed.at acquire, align 8
  %is.failed = icmp ne i64 %failed, 0
  br i1 %is.failed, label %return, label %rest

rest:
  %is.tired = icmp sge i64 %looks, {LOOKS}
  %can.yield = icmp ne ptr %yield, null
  %yields = and i1 %is.tired, %can.yield
  br i1 %yields, label %leave, label %again

leave:
  %ignored = call i32 %yield()
  br label %again

again:
  %more.looks = add i64 %looks, 1
  br label %scan

return:
  ret void
}}

define void @graphc_side_by_side(ptr %stretch, ptr %parallel, i64 %threads) {{
entry:
  %wanted = trunc i64 %threads to i32
  call void %parallel(ptr @worker, ptr %stretch, i32 %wanted, i32 0)
  ret void
}}
"""
"""The loop in LLVM IR. It runs a stretch on `threads` threads of libgomp.

The thread that finishes the last piece of a row advances its stream. The number of finished rows
gives the current row of a stream, so no thread takes a piece beyond the end of a row.
"""


class _Stretch(ctypes.Structure):
    """The data that threads share in a stretch: rows of several streams that run concurrently.

    Arrays are addresses with one entry per stream.
    """

    _fields_ = (
        ("streams", ctypes.c_int64),
        ("entries", ctypes.c_void_p),
        ("counts", ctypes.c_void_p),
        ("progress", ctypes.c_void_p),
        ("ticket", ctypes.c_int64),  # number of threads that have begun
        ("failed", ctypes.c_int64),  # the address of a row that failed
        ("execute", ctypes.c_void_p),
        ("yields", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class _Link:
    """A row of a stream, and the number of rows of each stream that must finish before it."""

    row: int
    needs: tuple[int, ...]


class SideBySide:
    """A call of a step that runs rows of a table concurrently, subject to their dependences."""

    def __init__(self, table: StepTable, streams: Sequence[Sequence[_Link]]) -> None:
        self._pool = table.pool
        self.rows = sum(map(len, streams))
        """The number of rows that a call runs."""
        links = [link for stream in streams for link in stream]
        needs = np.array([link.needs for link in links], np.int64)
        self._entries = np.zeros(len(links), ENTRY)
        self._entries["needs"] = needs.ctypes.data + needs.strides[0] * np.arange(len(links))
        self._rows = table.table
        first = self._rows.ctypes.data
        for entry, link in zip(self._entries, links, strict=True):
            entry["row"] = first + link.row * ROW.itemsize
            entry["share"] = table.share(link.row)
        counts = np.array([len(stream) for stream in streams], np.int64)
        begins = (np.cumsum(counts) - counts) * ENTRY.itemsize
        lists = (self._entries.ctypes.data + begins).astype(np.uint64)
        self._progress = np.zeros(len(streams), np.int64)
        self._kept = table, needs, counts, lists
        addresses = (array.ctypes.data for array in (lists, counts, self._progress))
        self._stretch = _Stretch(len(streams), *addresses, 0, 0, table.execute, _yields())

    def __call__(self) -> None:
        """Run all rows. Raises `GraphcError` if a primitive fails."""
        self._entries["next"] = self._entries["done"] = 0
        self._progress[:] = 0
        stretch, pool = self._stretch, self._pool
        stretch.ticket = stretch.failed = 0
        called(_loop(), ctypes.addressof(stretch), pool.parallel, pool.threads)
        if stretch.failed:
            row = (stretch.failed - self._rows.ctypes.data) // ROW.itemsize
            raise GraphcError(f"oneDNN failed to execute call {row} of the step")


def side_by_side(
    calls: Mapping[Node, list[Call]], order: Mapping[Node, int], slots: Mapping[Node, StreamSlot]
) -> list[Call]:
    """Return the calls of some nodes; rows that may run concurrently are joined into one call.

    `calls` has the nodes in order, and `order` gives their numbers in the graph. Each dependence of
    a node is one of these nodes, or has finished before them. Views, which have no slot, have no
    calls.
    """
    queues: dict[int, deque[Node]] = {}
    for node, own in calls.items():
        assert node in slots or not own
        if node in slots:
            queues.setdefault(slots[node].stream, deque()).append(node)
    waiting = {order[node] for node in calls if node in slots}
    found: list[Call] = []
    while any(queues.values()):
        stretch = list(_stretch(queues, calls, slots, order, waiting))
        found += _joined(stretch, calls, slots, order)
        ready = (q[0] for q in queues.values() if q and waiting.isdisjoint(slots[q[0]].waits))
        alone = min(ready, key=order.__getitem__, default=None)
        if alone is not None:
            queues[slots[alone].stream].popleft()
            waiting.discard(order[alone])
            found += calls[alone]
    return found


def _stretch(
    queues: Mapping[int, deque[Node]],
    calls: Mapping[Node, list[Call]],
    slots: Mapping[Node, StreamSlot],
    order: Mapping[Node, int],
    waiting: set[int],
) -> Iterator[Node]:
    """Pop nodes that need not run alone from the heads of the streams.

    Stops when each head must run alone, or has a dependence that was neither popped nor finished.
    """
    is_moving = True
    while is_moving:
        is_moving = False
        for queue in queues.values():
            while queue and waiting.isdisjoint(slots[queue[0]].waits) and _shares(calls[queue[0]]):
                node = queue.popleft()
                waiting.discard(order[node])
                is_moving = True
                yield node


def _shares(calls: Sequence[Call]) -> bool:
    """Return True if all calls of a node are rows that may run concurrently with others."""
    return all(isinstance(c, Rows) and c.table.may_share(c.first, c.end) for c in calls)


def _joined(
    nodes: Sequence[Node],
    calls: Mapping[Node, list[Call]],
    slots: Mapping[Node, StreamSlot],
    order: Mapping[Node, int],
) -> list[Call]:
    """Return the calls of the nodes of a stretch, joined into one if they span several streams."""
    if len({slots[node].stream for node in nodes if calls[node]}) < 2:
        return [call for node in nodes for call in calls[node]]
    numbers = sorted({slots[node].stream for node in nodes})
    streams: dict[int, list[_Link]] = {number: [] for number in numbers}
    clocks = {number: [0] * len(numbers) for number in numbers}
    """Stream → the number of rows of each stream that must finish before its next row: a vector
    clock. A node without calls, such as a concatenation in place, propagates its dependences."""
    behind: dict[int, list[int]] = {}
    table: StepTable | None = None
    for node in nodes:
        number = slots[node].stream
        clock, stream = clocks[number], streams[number]
        for other in slots[node].waits:
            clock[:] = map(max, clock, behind.get(other, clock))
        for rows in calls[node]:
            assert isinstance(rows, Rows)
            table = rows.table
            stream += (_Link(row, tuple(clock)) for row in range(rows.first, rows.end))
        own = numbers.index(number)
        behind[order[node]] = [*clock[:own], len(stream), *clock[own + 1 :]]
    return [] if table is None else [SideBySide(table, list(streams.values()))]


def _yields() -> int:
    """Return the address of `sched_yield`; 0 if there is none."""
    found = getattr(openmp(), "sched_yield", None)
    return 0 if found is None else address_of(found)


@functools.cache
def _loop() -> Any:
    kernel = NativeKernel("graphc_side_by_side", _LOOP)
    address = llvm.addresses([kernel], cache_folder())[kernel.name]
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)(address)
