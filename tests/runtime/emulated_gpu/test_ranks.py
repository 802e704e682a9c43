"""Ranks with an emulated GPU each and a stand-in for NCCL, against ranks on CPUs."""

import contextlib
import ctypes
import re
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from passes.test_data_parallel import drawn, mlp, norms
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.fake_nccl import INVALID_ARGUMENT, REMOTE_ERROR, FakeLibrary
from runtime.ranks.threads import on_ranks

import graphc as g
from graphc import Program
from graphc.errors import RanksError
from graphc.runtime.gpu import nccl
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.ranks.lane import Lane
from graphc.runtime.ranks.together import connected_gpus

OPTIONS = {
    "all": {},
    "shards": {"shard": "states"},
    "norms": {"sync_norm": True},
    "clipped": {"clip_norm": 0.1},
}


def connected(lane, library, gpu=None):
    """The communicator of a rank, whose GPU is its own unless it is told."""
    gpu = f"gpu {lane.wire.rank}" if gpu is None else gpu
    return connected_gpus(lane, nccl.Nccl(library), gpu, contextlib.nullcontext)


def programs(plan, wire, seed=0, **options):
    """A rank's program on an emulated GPU, and the library that it calls."""
    library, lane = FakeLibrary(wire), Lane(wire)
    device = EmulatedDevice(seed + wire.rank)
    device.communicator = connected(lane, library)
    backend = GpuBackend(plan, device, **options)
    return Program(plan, backend=backend, lane=lane), library


@pytest.mark.parametrize("how", OPTIONS)
def test_ranks_on_gpus_train_as_one_gpu_does_their_joint_batch(how):
    build = norms if how == "norms" else mlp
    options = {"optimizer": g.optim.SGD(0.1, momentum=0.9), "device": "h200"}
    plan = g.plan(build(4), ranks=2, **options, **OPTIONS[how])
    feeds, joint = drawn(plan.graph, 2, 0)
    whole = {"clip_norm": 0.1} if how == "clipped" else {}
    alone = g.plan(build(8), **options, **whole)
    one = Program(alone, backend=GpuBackend(alone, EmulatedDevice()))
    losses = [float(one.step(each)["loss"]) for each in joint]

    def work(wire):
        program, library = programs(plan, wire)
        found = [float(program.step(each[wire.rank])["loss"]) for each in feeds]
        return found, dict(program.states), library.calls, program.report.calls["nccl"]

    ranks = on_ranks(2, work)
    for found, states, calls, count in ranks:
        np.testing.assert_allclose(found, losses, rtol=1e-12)
        for name, state in one.states.items():
            np.testing.assert_allclose(states[name], state, rtol=1e-11, atol=1e-13)
            assert states[name].tobytes() == ranks[0][1][name].tobytes()
        sent = [node.op.name for node in plan.graph.nodes if node.op.sends]
        assert count == len(sent)
        assert calls == sent * len(feeds)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 5))]
)
@pytest.mark.parametrize("options", [{}, {"cuda_graph": False}, {"poison": True}], ids=str)
def test_exchanges_wait_and_are_waited_for_in_any_order_of_streams(seed, options):
    plan = g.plan(mlp(4), ranks=2, shard="states", optimizer=g.optim.Adam(1e-2), device="h200")
    feeds, _ = drawn(plan.graph, 2, 0)

    def work(wire, seed, options):
        program, _ = programs(plan, wire, seed, **options)
        losses = [program.step(each[wire.rank])["loss"].tobytes() for each in feeds]
        return losses, {name: state.tobytes() for name, state in program.states.items()}

    plain = on_ranks(2, lambda wire: work(wire, 100, {"poison": True}))
    assert on_ranks(2, lambda wire: work(wire, seed, options)) == plain


def test_refusals_of_the_library_are_errors():
    def work(wire):
        library = FakeLibrary(wire)
        library.ncclCommInitRank.work = lambda *_: INVALID_ARGUMENT
        with pytest.raises(RanksError, match="ncclCommInitRank of NCCL failed: invalid argument"):
            connected(Lane(wire), library)

    on_ranks(2, work)


def test_two_ranks_have_two_gpus():
    def work(wire):
        with pytest.raises(RanksError, match="ranks 0 and 1 use the same GPU; start at most one"):
            connected(Lane(wire, 2.0), FakeLibrary(wire), "the only one")

    on_ranks(2, work)


def test_ranks_that_do_not_come_to_meet_are_waited_for_so_long():
    def work(wire):
        library, lane = FakeLibrary(wire), Lane(wire, 2.0)
        library.ncclCommInitRank.work = lambda *_: time.sleep(4)
        with pytest.raises(
            RanksError, match=r"waited 2 s for the others in the connection of GPUs"
        ):
            connected(lane, library)

    on_ranks(2, work)


def test_a_step_whose_others_are_gone_is_given_up():
    """At the limit, or as soon as the library tells of an error; then nothing is run any more."""

    def work(wire):
        library = FakeLibrary(wire)
        late, lost = (connected(Lane(wire), library) for _ in range(2))
        late.wait(lambda: True)
        library.graphs_are_gone.clear()
        late.time_limit = 0.05
        with pytest.raises(RanksError, match=r"waited 0\.05 s for a step on GPUs; .*rank_timeout"):
            late.wait(lambda: False)
        library.error = REMOTE_ERROR
        with pytest.raises(RanksError, match="lost its connection to the other GPUs: remote error"):
            lost.wait(lambda: False)
        for communicator in (late, lost):
            with pytest.raises(RanksError, match="restart all ranks from the last checkpoint"):
                communicator.run(None, 0)
        del communicator, late, lost
        assert not library.aborts.acquire(timeout=0.01)
        library.graphs_are_gone.set()
        assert library.aborts.acquire(timeout=60)
        assert library.aborts.acquire(timeout=60)
        assert not library.aborts.acquire(timeout=0.01)  # each once

    on_ranks(2, work)


def test_a_connection_is_given_back_with_its_program():
    def work(wire):
        library = FakeLibrary(wire)
        communicator = connected(Lane(wire), library)
        library.graphs_are_gone.clear()  # which may be freed behind it
        assert not library.aborts.acquire(timeout=0.01)
        del communicator
        library.graphs_are_gone.set()
        assert library.aborts.acquire(timeout=60)

    on_ranks(2, work)


def header():
    """The text of nccl.h, where NVIDIA's wheel is installed."""
    found = find_spec("nvidia")
    for folder in found.submodule_search_locations if found else ():
        path = Path(folder) / "nccl" / "include" / "nccl.h"
        if path.exists():
            return path.read_text()
    return None


KINDS = {
    "size_t": ctypes.c_size_t,
    "int": ctypes.c_int,
    "ncclDataType_t": ctypes.c_int,
    "ncclRedOp_t": ctypes.c_int,
    "ncclResult_t": ctypes.c_int,
    "ncclUniqueId": nccl.Identity,
    "ncclComm_t": ctypes.c_void_p,
    "cudaStream_t": ctypes.c_void_p,
}


@pytest.mark.skipif(header() is None, reason="nvidia-nccl-cu13 is not installed")
def test_signatures_and_numbers_are_the_headers():
    text = header()
    for name, (_, arguments) in nccl.SIGNATURES.items():
        declared = re.search(rf"\b(\S+)\s+{name}\(([^)]*)\);", text)[2]
        kinds = []
        for parameter in declared.split(","):
            words = parameter.replace("const", "").split()
            kinds.append(None if "*" in parameter else KINDS[words[0]])
        assert len(kinds) == len(arguments), name
        for kind, argument in zip(kinds, arguments, strict=True):
            is_pointer = argument is ctypes.c_void_p or hasattr(argument, "contents")
            assert is_pointer if kind is None else argument is kind, name
    for word, number in {
        "ncclFloat16": 6, "ncclFloat32": 7, "ncclFloat64": 8, "ncclBfloat16": 9, "ncclInt8": 0,
        "ncclSum": 0, "ncclSuccess": nccl.SUCCESS, "ncclInProgress": nccl.IN_PROGRESS,
        "ncclRemoteError": REMOTE_ERROR, "ncclInvalidArgument": INVALID_ARGUMENT,
        "NCCL_UNIQUE_ID_BYTES": 128,
    }.items():  # fmt: skip
        assert int(re.search(rf"\b{word}\s*=?\s*(\d+)", text)[1]) == number
    assert {nccl.DATA_TYPES[t] for t in nccl.DATA_TYPES} == {6, 7, 8, 9}
