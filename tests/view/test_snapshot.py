"""Snapshots: replayed as PyTorch's viewer does, they give the plan's live bytes."""

import pickle
import pickletools
import subprocess
import sys

import pytest
from view.networks import EACH_SMALL_PLAN, planned, small_plan
from view.replay import replayed

from graphc.view.snapshot import snapshot

READ_BY_THE_VIEWER = {
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPUT",
    "BINUNICODE", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "FRAME", "LONG1", "LONG_BINGET",
    "LONG_BINPUT", "MARK", "MEMOIZE", "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "SETITEM",
    "SETITEMS", "SHORT_BINUNICODE", "STOP", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3",
}  # fmt: skip
"""Opcodes of pickle that torch/utils/viz/MemoryViz.js knows; it stops at any other."""


def replay(found):
    """Bytes in use after each event, with blocks that must not overlap; then what is left."""
    held, in_use = {}, []
    (events,) = found["device_traces"]
    for event in events:
        begin, end = event["addr"], event["addr"] + event["size"]
        if event["action"] == "alloc":
            assert all(end <= a or b <= begin for a, b in held.items())
            held[begin] = end
        elif event["action"] == "free_completed":
            assert held.pop(begin) == end
        in_use.append(sum(b - a for a, b in held.items()))
    return in_use, held


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_a_replay_has_the_live_bytes_of_the_plan(name):
    plan = small_plan(name)
    found = pickle.loads(snapshot(plan))
    in_use, left = replay(found)
    assert max(in_use) == plan.live_bytes
    (segment,) = found["segments"]
    assert segment["total_size"] == plan.arena_bytes == sum(b["size"] for b in segment["blocks"])
    address = 0
    active = {}
    for block in segment["blocks"]:
        assert block["address"] == address
        address += block["size"]
        if block["state"] == "active_allocated":
            active[block["address"]] = address
    assert active == left
    assert segment["allocated_size"] == sum(b - a for a, b in left.items())


@pytest.mark.parametrize("name", EACH_SMALL_PLAN)
def test_categories_are_kinds(name):
    """A buffer is a block for as long as it is of one kind, which a replay of all writes has."""
    plan = small_plan(name)
    (events,) = pickle.loads(snapshot(plan))["device_traces"]
    found = sorted((e["category"], e["addr"], e["size"]) for e in events if e["action"] == "alloc")
    wanted, held, unit = [], replayed(plan), plan.alignment
    for buffer in plan.buffers:
        life = range(buffer.lifetime.first, plan.lifetime_end(buffer))
        kinds = [held[step, buffer.index][1] for step in life if buffer.bytes]
        blocks = [kind for at, kind in enumerate(kinds) if at == 0 or kinds[at - 1] != kind]
        wanted += [(kind, buffer.offset, -(-buffer.bytes // unit) * unit) for kind in blocks]
    assert found == sorted(wanted)


def test_the_viewers_reader_knows_every_opcode():
    content = snapshot(planned(recompute="sublinear"))
    assert {code.name for code, _, _ in pickletools.genops(content)} <= READ_BY_THE_VIEWER
    assert content[:2] == b"\x80\x04"


def test_frames_name_values_and_nodes():
    plan = planned("mlp")
    events = pickle.loads(snapshot(plan))["device_traces"][0]
    names = {frame["name"].split()[0] for event in events for frame in event["frames"]}
    wanted = {plan.graph.names[v] for v in plan.graph.values if plan.placements[v].how != "view"}
    assert wanted <= names | {"workspace"}


def test_the_viewer_finds_the_category_that_it_wants():
    events = pickle.loads(snapshot(planned("mlp")))["device_traces"][0]
    assert "unknown" in {event["category"] for event in events}


def test_it_is_written_and_read_without_torch():
    code = (
        "import graphc as g, sys\n"
        "from graphc.view.snapshot import snapshot\n"
        "snapshot(g.plan(outputs=[g.relu(g.input('x', (4,)))]))\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.peers
def test_torch_reads_it():
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    plan = planned()
    found = pickle.loads(snapshot(plan))
    assert "total_reserved" in viewer.segsum(found)
    assert f"{len(found['device_traces'][0])} entries" in viewer.trace(found)
    assert "<html" in viewer.trace_plot(found).lower() or "<script" in viewer.trace_plot(found)
