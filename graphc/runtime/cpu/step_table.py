"""The step table: a step as a table of C calls, run by a small loop outside Python.

A row of the table is a kernel with its arguments, or a primitive of oneDNN; see `ROW`. The loop is
a function in LLVM IR, compiled like a kernel.

A kernel with enough pieces runs on several threads of libgomp's pool, which oneDNN also uses.
Scheduling is dynamic: a free thread takes some pieces at a time. A thread that shares its core with
another process therefore does not delay the others. The result of a piece does not depend on the
thread. If the loop still waits long for a thread, the next kernels run on one thread only.
"""

from __future__ import annotations

import ctypes
import functools
import os
import signal
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np

from graphc.codegen.llvm.kernel import NativeKernel
from graphc.errors import GraphcError
from graphc.runtime.cpu import llvm
from graphc.runtime.cpu.onednn.primitive import Execution
from graphc.runtime.kernel_files import cache_folder

ROW = np.dtype(
    [
        ("function", np.uint64),  # of a kernel, or 0 for a primitive of oneDNN
        ("first", np.uint64),  # the kernel's buffers, or the primitive
        ("second", np.uint64),  # the kernel's numbers, or the stream
        ("pieces", np.int64),  # the number of pieces, or of a primitive's arguments
        ("threads", np.int64),  # the useful number, or that a primitive was created for
        ("arguments", np.uint64),  # of a primitive
        ("next", np.int64),  # the first piece that no thread has taken yet
        ("share", np.int64),  # the number of pieces that a thread takes at a time
        ("ended", np.uint64),  # when the first thread found no piece left
    ]
)
"""The row format of the table, as the loop reads it; each field has eight bytes."""

WORK_A_THREAD = 1 << 15
"""Minimum elements per thread that a kernel accesses; with fewer, a further thread costs more than
it saves."""

SHARES = 4
"""The number of times that each thread takes pieces of a kernel, if there are enough pieces."""

LONG_WAIT = 1 << 19
"""Ticks of the cycle counter above which a wait for a thread is long: about 0.2 ms on x86-64, more
if ticks are longer. Such a wait occurs only if another process has taken the core of a thread."""

LEAST_TURNS, MOST_TURNS = 16, 1024
"""Bounds of the number of kernels that run on one thread after a long wait. The number doubles if
the next wait is long too, and halves otherwise."""

ROW_TYPE = "%row = type { ptr, ptr, ptr, i64, i64, ptr, i64, i64, i64 }"
"""The row format `ROW` as a type of LLVM IR."""

_LOOP = f"""
{ROW_TYPE}
%pool = type {{ ptr, ptr, ptr, i64, i64, i64 }}

declare i64 @llvm.readcyclecounter()
declare i64 @llvm.umin.i64(i64, i64)

define internal void @worker(ptr %row) {{
entry:
  %function.at = getelementptr %row, ptr %row, i32 0, i32 0
  %function = load ptr, ptr %function.at
  %first.at = getelementptr %row, ptr %row, i32 0, i32 1
  %first = load ptr, ptr %first.at
  %second.at = getelementptr %row, ptr %row, i32 0, i32 2
  %second = load ptr, ptr %second.at
  %pieces.at = getelementptr %row, ptr %row, i32 0, i32 3
  %pieces = load i64, ptr %pieces.at
  %next.at = getelementptr %row, ptr %row, i32 0, i32 6
  %share.at = getelementptr %row, ptr %row, i32 0, i32 7
  %share = load i64, ptr %share.at
  br label %take

take:
  %begin = atomicrmw add ptr %next.at, i64 %share seq_cst
  %more = icmp slt i64 %begin, %pieces
  br i1 %more, label %run, label %done

run:
  %far = add i64 %begin, %share
  %beyond = icmp sgt i64 %far, %pieces
  %end = select i1 %beyond, i64 %pieces, i64 %far
  call void %function(ptr %first, ptr %second, i64 %begin, i64 %end)
  br label %take

done:
  %now = call i64 @llvm.readcyclecounter()
  %ended.at = getelementptr %row, ptr %row, i32 0, i32 8
  %earlier = atomicrmw umin ptr %ended.at, i64 %now seq_cst
  ret void
}}

define i64 @graphc_step(ptr %table, i64 %from, i64 %to, ptr %pool, ptr %execute) {{
entry:
  %parallel = load ptr, ptr %pool
  %get.at = getelementptr %pool, ptr %pool, i32 0, i32 1
  %get = load ptr, ptr %get.at
  %set.at = getelementptr %pool, ptr %pool, i32 0, i32 2
  %set = load ptr, ptr %set.at
  %threads.of.pool.at = getelementptr %pool, ptr %pool, i32 0, i32 3
  %threads.of.pool = load i64, ptr %threads.of.pool.at
  %has.pool = icmp ne ptr %get, null
  br i1 %has.pool, label %take.pool, label %begin

take.pool:
  %before.taken = call i32 %get()
  %wanted.of.pool = trunc i64 %threads.of.pool to i32
  call void %set(i32 %wanted.of.pool)
  br label %begin

begin:
  %before = phi i32 [ %before.taken, %take.pool ], [ 0, %entry ]
  br label %check

check:
  %index = phi i64 [ %from, %begin ], [ %after, %next ]
  %ends = icmp sge i64 %index, %to
  br i1 %ends, label %done, label %choose

choose:
  %row = getelementptr %row, ptr %table, i64 %index
  %first.at = getelementptr %row, ptr %row, i32 0, i32 1
  %first = load ptr, ptr %first.at
  %second.at = getelementptr %row, ptr %row, i32 0, i32 2
  %second = load ptr, ptr %second.at
  %pieces.at = getelementptr %row, ptr %row, i32 0, i32 3
  %pieces = load i64, ptr %pieces.at
  %function = load ptr, ptr %row
  %is.primitive = icmp eq ptr %function, null
  br i1 %is.primitive, label %primitive, label %kernel

primitive:
  %count = trunc i64 %pieces to i32
  %arguments.at = getelementptr %row, ptr %row, i32 0, i32 5
  %arguments = load ptr, ptr %arguments.at
  %status = call i32 %execute(ptr %first, ptr %second, i32 %count, ptr %arguments)
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %done, label %next

kernel:
  %threads.at = getelementptr %row, ptr %row, i32 0, i32 4
  %threads = load i64, ptr %threads.at
  %small = icmp sle i64 %threads, 1
  br i1 %small, label %here, label %ask

ask:
  %alone.at = getelementptr %pool, ptr %pool, i32 0, i32 4
  %alone = load i64, ptr %alone.at
  %is.alone = icmp sgt i64 %alone, 0
  br i1 %is.alone, label %skip, label %shared

skip:
  %fewer = sub i64 %alone, 1
  store i64 %fewer, ptr %alone.at
  br label %here

here:
  call void %function(ptr %first, ptr %second, i64 0, i64 %pieces)
  br label %next

shared:
  %next.at = getelementptr %row, ptr %row, i32 0, i32 6
  store i64 0, ptr %next.at
  %ended.at = getelementptr %row, ptr %row, i32 0, i32 8
  store i64 -1, ptr %ended.at
  %wanted = trunc i64 %threads to i32
  call void %parallel(ptr @worker, ptr %row, i32 %wanted, i32 0)
  %now = call i64 @llvm.readcyclecounter()
  %ended = load i64, ptr %ended.at
  %waited = sub i64 %now, %ended
  %is.long = icmp sgt i64 %waited, {LONG_WAIT}
  %turns.at = getelementptr %pool, ptr %pool, i32 0, i32 5
  %turns = load i64, ptr %turns.at
  %twice = shl i64 %turns, 1
  %half = lshr i64 %turns, 1
  %more.turns = call i64 @llvm.umin.i64(i64 %twice, i64 {MOST_TURNS})
  %changed = select i1 %is.long, i64 %more.turns, i64 %half
  %kept.turns = or i64 %changed, {LEAST_TURNS}
  store i64 %kept.turns, ptr %turns.at
  br i1 %is.long, label %go.alone, label %next

go.alone:
  store i64 %kept.turns, ptr %alone.at
  br label %next

next:
  %after = add i64 %index, 1
  br label %check

done:
  br i1 %has.pool, label %give.back, label %end

give.back:
  call void %set(i32 %before)
  br label %end

end:
  ret i64 %index
}}
"""
"""The loop in LLVM IR. It runs rows `from` to `to` - 1, and returns `to` or the row that failed.

With a pool, it sets the number of threads of oneDNN to that of the pool, and restores it.
"""


class Pool(ctypes.Structure):
    """A pool of threads for kernels: functions of libgomp, and the number of threads.

    The functions are null without libgomp.
    """

    _fields_ = (
        ("parallel", ctypes.c_void_p),
        ("get", ctypes.c_void_p),
        ("set", ctypes.c_void_p),
        ("threads", ctypes.c_int64),
        ("alone", ctypes.c_int64),  # number of next kernels to run on one thread
        ("turns", ctypes.c_int64),  # number of kernels after the last wait, adapted by each wait
    )


SPINS = "20000"
"""The number of times that a waiting thread polls for work before it sleeps: about 0.1 ms. The
default of libgomp is 15 times as large, which delays other threads if another process has taken a
core."""


@functools.cache
def openmp() -> Any | None:
    """Load libgomp; None if this machine has none.

    Sets the spin count in the environment while libgomp is loaded, unless the user has set it or
    the wait policy.
    """
    name = "GOMP_SPINCOUNT"
    is_free = name not in os.environ and "OMP_WAIT_POLICY" not in os.environ
    if is_free:
        os.environ[name] = SPINS
    try:
        return ctypes.CDLL("libgomp.so.1")
    except OSError:
        return None
    finally:
        if is_free:
            del os.environ[name]


def pool_of(threads: int | None) -> Pool:
    """Return a pool of libgomp, by default one thread per processor; one thread without libgomp."""
    library = openmp()
    if library is None:
        return Pool(threads=1)
    functions = library.GOMP_parallel, library.omp_get_max_threads, library.omp_set_num_threads
    most = _most_threads(library)
    return Pool(*map(address_of, functions), min(threads or processors(), most))


def _most_threads(library: Any) -> int:
    """Return the number of threads that libgomp guarantees.

    More are not requested, because oneDNN waits for all requested threads.
    """
    if library.omp_get_dynamic() or library.omp_get_max_active_levels() < 1:
        return 1
    return int(library.omp_get_thread_limit())


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class StepTable:
    """A table of rows. Rows are appended, and any consecutive range of them can be run."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._rows: list[tuple[int, ...]] = []
        self._kept: list[Any] = []
        """Objects to which rows have pointers, kept so that they are not freed."""
        self.execute = 0
        """The address of oneDNN's function that runs a primitive."""
        self._table = np.empty(0, ROW)

    def __len__(self) -> int:
        return len(self._rows)

    def add_kernel(
        self, function: int, pointers: Sequence[int], numbers: Sequence[int], pieces: int, work: int
    ) -> None:
        """Add a kernel with its arguments as a row; the kernel accesses about `work` elements."""
        given = np.array(pointers, np.uint64), np.array(numbers, np.int64)
        self._kept += given
        threads = max(1, min(self.pool.threads, pieces, work // WORK_A_THREAD))
        share = max(1, pieces // (threads * SHARES))
        first, second = (array.ctypes.data for array in given)
        self._rows.append((function, first, second, pieces, threads, 0, 0, share, 0))

    def add_primitive(self, call: Execution) -> None:
        """Add a call of a oneDNN primitive, with its arguments, as a row."""
        self.execute = call.function
        self._kept.append(call)
        arguments = ctypes.addressof(call.arguments)
        row = 0, call.primitive, call.stream, call.count, call.threads, arguments, 0, 1, 0
        self._rows.append(row)

    @property
    def table(self) -> np.ndarray[Any, np.dtype[Any]]:
        """All rows as one array; adding a row replaces the array."""
        if len(self._table) != len(self._rows):
            self._table = np.array(self._rows, ROW)
        return self._table

    def share(self, row: int) -> int:
        """Return the number of pieces of a row that a thread takes at a time.

        The thread takes all pieces if a second thread would cost more than it saves.
        """
        _, _, _, pieces, threads, _, _, share, _ = self._rows[row]
        return share if threads > 1 else max(1, pieces)

    def may_share(self, first: int, end: int) -> bool:
        """Return True if rows `first` to `end` - 1 may run concurrently with others.

        This requires a pool of several threads, and that every primitive among the rows runs on one
        thread.
        """
        if self.pool.threads < 2:
            return False
        return all(row[0] != 0 or row[4] == 1 for row in self._rows[first:end])

    def run(self, first: int, end: int) -> None:
        """Run rows `first` to `end` - 1. Raises `GraphcError` if a primitive fails."""
        table, pool = self.table.ctypes.data, ctypes.addressof(self.pool)
        reached = called(_loop(), table, first, end, pool, self.execute)
        if reached != end:
            raise GraphcError(f"oneDNN failed to execute call {reached} of the step")


class _Forked:
    """The thread that runs the loop in a forked child.

    A pool of libgomp belongs to the thread that created it, and its worker threads do not exist in
    the child. So a new thread of the child runs the loop, and gets a new pool.
    """

    caller: ClassVar[ThreadPoolExecutor | None] = None
    has_called: ClassVar[bool] = False
    """True if the loop has run, so that the process may have a pool."""

    @classmethod
    def begin(cls) -> None:
        """Start the thread, if the parent may have a pool."""
        if cls.has_called:
            with _uninterrupted():  # the thread inherits the signal mask
                cls.caller = ThreadPoolExecutor(1)
                cls.caller.submit(int).result()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_Forked.begin)


def called(loop: Any, *arguments: int) -> Any:
    """Run the loop and return its result.

    The loop has always ended when this function returns or raises.
    """
    _Forked.has_called = True
    if _Forked.caller is None:
        return loop(*arguments)
    with _uninterrupted():
        return _Forked.caller.submit(loop, *arguments).result()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block Ctrl-C while the context is active: it would break locks between threads."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@functools.cache
def _loop() -> Any:
    kernel = NativeKernel("graphc_step", _LOOP)
    address = llvm.addresses([kernel], cache_folder())[kernel.name]
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    return ctypes.CFUNCTYPE(number, pointer, number, number, pointer, pointer)(address)


def address_of(function: Any) -> int:
    """Return the address of a C function."""
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address
