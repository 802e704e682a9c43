"""Tables of C calls: what rows compute, in which order, and on how many threads."""

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from llvmlite import ir

from graphc.codegen.llvm.kernel import INDEX, kernel_of
from graphc.errors import GraphcError
from graphc.runtime.cpu import llvm
from graphc.runtime.cpu.onednn.primitive import Argument, Execution
from graphc.runtime.cpu.step_table import WORK_A_THREAD, StepTable, openmp, pool_of

PIECES = 1000
NUMBER = ir.DoubleType()


def _scaled(builder):
    """Piece i: y[i] = y[i] * numbers[0] + i."""
    pointers, numbers, first, last = builder.function.args
    y = builder.load(pointers, typ=ir.PointerType())
    factor = builder.sitofp(builder.load(numbers, typ=INDEX), NUMBER)
    before = builder.block
    loop, done = builder.append_basic_block(), builder.append_basic_block()
    builder.cbranch(builder.icmp_signed("<", first, last), loop, done)
    builder.position_at_end(loop)
    piece = builder.phi(INDEX)
    piece.add_incoming(first, before)
    place = builder.gep(y, [piece], source_etype=NUMBER)
    product = builder.fmul(builder.load(place, typ=NUMBER), factor)
    builder.store(builder.fadd(product, builder.sitofp(piece, NUMBER)), place)
    following = builder.add(piece, INDEX(1))
    piece.add_incoming(following, loop)
    builder.cbranch(builder.icmp_signed("<", following, last), loop, done)
    builder.position_at_end(done)


@pytest.fixture(scope="module")
def scaled():
    """The address of a kernel whose pieces each change a number of their own."""
    kernel = kernel_of("scaled", "y * factor + i", _scaled)
    return llvm.addresses([kernel], None)[kernel.name]


def table_of(threads, function, y, factors, work=PIECES * WORK_A_THREAD):
    table = StepTable(pool_of(threads))
    for factor in factors:
        table.add_kernel(function, [y.ctypes.data], [factor], len(y), work)
    return table


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("pieces", [1, 2, 7, PIECES])
def test_every_piece_is_done_once_and_rows_in_their_order(scaled, threads, pieces):
    y = np.arange(pieces, dtype=np.float64) / 3
    wanted = y.copy()
    table = table_of(threads, scaled, y, [3, 5, 7])
    for _ in range(2):
        table.run(0, len(table))
        for factor in (3, 5, 7):
            wanted = wanted * factor + np.arange(pieces)
    np.testing.assert_array_equal(y, wanted)


def test_a_run_is_of_the_rows_that_were_asked_for(scaled):
    y = np.ones(5)
    table = table_of(2, scaled, y, [2, 3, 5])
    table.run(1, 2)
    np.testing.assert_array_equal(y, 3.0 + np.arange(5))
    table.run(1, 1)
    np.testing.assert_array_equal(y, 3.0 + np.arange(5))


def test_rows_that_are_added_after_a_run_run_too(scaled):
    y = np.ones(3)
    table = table_of(1, scaled, y, [2])
    table.run(0, 1)
    table.add_kernel(scaled, [y.ctypes.data], [3], 3, 3)
    table.run(1, 2)
    np.testing.assert_array_equal(y, (2.0 + np.arange(3)) * 3 + np.arange(3))


@pytest.mark.parametrize(("work", "wanted"), [(1, 1), (2 * WORK_A_THREAD, 2), (2**40, 4)])
def test_threads_follow_from_the_work_and_are_no_more_than_the_pool(scaled, work, wanted):
    if openmp() is None:
        pytest.skip("libgomp is missing")
    table = table_of(4, scaled, np.ones(PIECES), [2], work)
    table.run(0, 0)
    (row,) = table._table
    assert row["threads"] == wanted
    assert 1 <= row["share"] * wanted <= PIECES


def test_the_pool_is_as_it_was_after_a_run(scaled):
    library = openmp()
    if library is None:
        pytest.skip("libgomp is missing")
    before, y = library.omp_get_max_threads(), np.ones(PIECES)
    table_of(before + 2, scaled, y, [2]).run(0, 1)
    assert library.omp_get_max_threads() == before


def test_a_primitive_that_fails_is_told_and_ends_the_run(scaled):
    """The rows before it have run, those after it have not."""
    signature = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p
    )
    calls = []

    def execute(primitive, stream, count, arguments):
        calls.append((primitive, stream, count, arguments))
        return primitive - 1

    function = signature(execute)
    address = ctypes.cast(function, ctypes.c_void_p).value
    arguments = (Argument * 2)()
    y = np.ones(3)
    table = table_of(1, scaled, y, [2])
    for primitive in (1, 4):
        table.add_primitive(Execution(address, primitive, 5, arguments, 2, 1, (function,)))
    table.add_kernel(scaled, [y.ctypes.data], [100], 3, 3)
    with pytest.raises(GraphcError, match="failed to execute call 2 of the step"):
        table.run(0, len(table))
    assert calls == [(primitive, 5, 2, ctypes.addressof(arguments)) for primitive in (1, 4)]
    np.testing.assert_array_equal(y, 2.0 + np.arange(3))


@pytest.mark.parametrize(
    "setting", ["OMP_THREAD_LIMIT=1", "OMP_DYNAMIC=true", "OMP_MAX_ACTIVE_LEVELS=0"]
)
def test_no_more_threads_are_asked_for_than_libgomp_gives(setting):
    """oneDNN's kernels wait for those that are missing, without an end."""
    name, value = setting.split("=")
    command = "from graphc.runtime.cpu.step_table import pool_of; print(pool_of(3).threads)"
    done = subprocess.run(
        [sys.executable, "-c", command], env=os.environ | {name: value}, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "1\n"


def test_without_libgomp_there_is_one_thread(scaled, monkeypatch):
    monkeypatch.setattr("graphc.runtime.cpu.step_table.openmp", lambda: None)
    y = np.ones(PIECES)
    table = table_of(2, scaled, y, [2])
    assert table.pool.threads == 1
    table.run(0, 1)
    np.testing.assert_array_equal(y, 2.0 + np.arange(PIECES))
