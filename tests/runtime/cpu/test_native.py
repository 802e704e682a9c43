"""Programs of native kernels: threads, plan files, machines without oneDNN, memory over steps."""

import ctypes
import gc
import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from models.test_zoo import SMALL
from plans.changed_files import sealed
from runtime.garbage import own_garbage

import graphc as g
from graphc.cli import main
from graphc.errors import OptionError
from graphc.models import gpt2, mlp
from graphc.runtime.cpu.native import Rows
from graphc.runtime.cpu.onednn import nodes
from graphc.runtime.feeds import random_feeds


def maps():
    """Convolutions of every kind, norms, pooling and dropout, large enough for several threads."""
    x, labels = g.input("x", (8, 8, 32, 32)), g.input("labels", (8,), "int32")
    h = g.relu(g.batch_norm(g.conv2d(x, 16, 3, padding=1, bias=False, name="full")))
    h = g.conv2d(h, 16, 3, stride=2, padding=1, groups=16, bias=False, name="each")
    h = g.dropout(g.max_pool2d(h, 2, 2), 0.1)
    h = g.silu(g.layer_norm(g.mean(h, (2, 3)), name="rows"))
    return g.softmax_cross_entropy(g.linear(h, 10, name="head"), labels)


def tokens():
    """Tables, attention, norms and products, some with rows of no even number."""
    sizes = {"layers": 1, "width": 48, "heads": 3, "seq_len": 33, "batch": 4, "vocab": 101}
    return gpt2(**sizes, drop=0.1)


def bits_of(program, steps=2):
    feeds = {source.name: a for source, a in random_feeds(program.graph, 3).items()}
    losses = [program.step(feeds)["loss"].tobytes() for _ in range(steps)]
    return losses, {name: array.tobytes() for name, array in program.states.items()}


def test_the_number_of_threads_changes_no_bit():
    plan = g.plan(tokens(), optimizer=g.optim.Adam(), clip_norm=1.0)
    one, two, three, default = (bits_of(g.bind(plan, threads=n)) for n in (1, 2, 3, None))
    assert one == two == three == default


@pytest.mark.parametrize("threads", [0, -1, 1.5, "all"])
def test_threads_are_one_or_more(threads):
    with pytest.raises(OptionError, match="threads"):
        g.compile(maps(), threads=threads)


def test_most_of_a_step_is_rows_of_a_table():
    program = g.compile(maps(), optimizer=g.optim.Adam())
    calls = [*program._backend._reading, *program._backend._updating]
    rows = sum(call.end - call.first for call in calls if isinstance(call, Rows))
    assert rows >= len(program.graph.nodes) // 2
    assert not any(isinstance(call, Rows) for call in numpy_calls_of(maps()))


def numpy_calls_of(loss):
    backend = g.compile(loss, optimizer=g.optim.Adam(), kernels="numpy")._backend
    return [*backend._reading, *backend._updating]


def test_without_onednn_numpy_computes_products_and_convolutions(monkeypatch):
    """The plan is the same; results are those of NumPy's kernels but for rounding."""
    feeds = None
    found = {}
    for name in ("native", "without", "numpy"):
        if name == "without":
            monkeypatch.setattr(nodes, "load_onednn", lambda: None)
        kernels = "numpy" if name == "numpy" else "native"
        loss = maps()
        program = g.compile(loss, optimizer=g.optim.SGD(0.1), kernels=kernels)
        feeds = feeds or {s.name: a for s, a in random_feeds(program.graph, 3).items()}
        losses = [float(program.step(feeds)["loss"]) for _ in range(3)]
        found[name] = (losses, dict(program.parameters), program.plan.text())
    assert found["native"][2] == found["without"][2]
    for name in ("native", "without"):
        np.testing.assert_allclose(found[name][0], found["numpy"][0], rtol=1e-4)
        for parameter, wanted in found["numpy"][1].items():
            largest = np.abs(wanted).max()
            given = found[name][1][parameter]
            np.testing.assert_allclose(given, wanted, rtol=0, atol=1e-4 * largest)


def test_the_devices_tell_that_onednn_is_missing(monkeypatch, capsys):
    monkeypatch.setattr("graphc.cli.devices.load_onednn", lambda: None)
    assert main(["devices"]) == 0
    assert "onednn: missing; products and convolutions run slower" in capsys.readouterr().out


@pytest.mark.parametrize("threads", [0, 1025, 2**63, True, "2"])
def test_invalid_thread_counts_are_refused(threads):
    with pytest.raises(OptionError, match=r"threads must be an integer from 1 to 1024, got "):
        g.compile(tokens(), threads=threads)


def test_a_plan_file_says_which_kernels_it_is_for(tmp_path):
    for kernels in ("native", "numpy"):
        g.save_plan(g.plan(tokens(), kernels=kernels), tmp_path / "plan.json")
        loaded = g.load_plan(tmp_path / "plan.json")
        assert loaded.device.kernels == kernels
        assert loaded.text() == g.plan(tokens(), kernels=kernels).text()


def test_a_file_of_a_plan_that_names_no_kernels_is_for_numpys(tmp_path):
    """Plans of earlier versions: they had no others, and their workspaces are of those."""
    plan = g.plan(tokens(), optimizer=g.optim.SGD(), kernels="numpy")
    content = json.loads(plan.to_json())
    assert "kernels" not in content["device"]
    (tmp_path / "old.json").write_text(sealed(content))
    loaded = g.load_plan(tmp_path / "old.json")
    assert loaded.device.kernels == "numpy"
    assert bits_of(g.bind(loaded)) == bits_of(g.bind(plan))


class Mallinfo2(ctypes.Structure):
    """See mallinfo(3); `uordblks` are the bytes of allocations that were not freed."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks",
                     "uordblks", "fordblks", "keepcost")
    )  # fmt: skip


def allocated_bytes():
    """What the C allocator has given out, small pieces and mapped ones."""
    try:
        mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        pytest.skip("glibc's mallinfo2 is missing")
    mallinfo2.restype = Mallinfo2
    found = mallinfo2()
    return found.uordblks + found.hblkhd


def resident_bytes():
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


STEPS = 100


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(lambda: mlp(layers=3, hidden=128, inputs=64, batch=32), id="mlp"),
        pytest.param(SMALL["preact_resnet"], id="convolutions", marks=pytest.mark.slow),
    ],
)
def test_no_bytes_are_left_behind_by_steps(network):
    """Of the C allocator, of the process, and of Python, less than a byte a step and node."""
    program = g.compile(network(), optimizer=g.optim.Adam())
    feeds = {source.name: a for source, a in random_feeds(program.graph, 3).items()}
    limit = STEPS * len(program.graph.nodes)

    def run(steps):
        for _ in range(steps):
            program.step(feeds)
        gc.collect()

    with own_garbage():
        run(5)
        before, resident = allocated_bytes(), resident_bytes()
        run(STEPS)
        assert allocated_bytes() - before < limit
        assert resident_bytes() - resident < 2**20
        grown = []
        tracemalloc.start()
        try:
            run(5)
            for _ in range(3):  # what other threads or caches take now and then is no leak
                before = tracemalloc.get_traced_memory()[0]
                run(STEPS)
                grown.append(tracemalloc.get_traced_memory()[0] - before)
        finally:
            tracemalloc.stop()
    assert min(grown) < limit, grown
