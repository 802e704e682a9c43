"""The GPU benchmark on an emulated GPU: its figures mean nothing, its form is checked."""

import json
import sys
import types

import gpu
import gpu_peers
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

from graphc.runtime import bind
from graphc.runtime.gpu.device import Gpu

CASE = gpu.Case(
    "a small mlp", "mlp", {"layers": 2, "hidden": 8, "batch": 4}, ("fp32",), "adam",
    strategies=("none", "own kernels", "overlapped", "sublinear"),
)  # fmt: skip


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A GPU as far as the benchmark looks at it."""
    found = Gpu(0, "an emulated GPU", 90, 2**37, 2**37, 67e12, 4800e9)
    device = types.SimpleNamespace(gpu=found, free_bytes=lambda: 2**36)
    clock = types.SimpleNamespace(
        device=device, free_bytes=device.free_bytes, milliseconds=lambda step, stream: 4.0
    )
    monkeypatch.setattr(gpu, "Gpu", lambda: clock)
    monkeypatch.setattr(gpu, "CASES", (CASE,))
    monkeypatch.setattr(gpu, "cuda_versions", dict)
    monkeypatch.setattr(bind, "find_gpu", lambda number: found)
    monkeypatch.setattr(bind, "CudaDevice", lambda *given: EmulatedDevice(tmp_path))
    return tmp_path / "gpu.json"


def rows_of(monkeypatch, path, *options):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--no-tests", "--output", str(path), *options])
    gpu.main()
    return json.loads(path.read_text())["rows"]


def test_every_line_is_written(monkeypatch, machine):
    rows = rows_of(monkeypatch, machine)
    assert [(row["system"], row["problem"]) for row in rows] == [
        ("graphc none", None), ("graphc own kernels", None), ("graphc overlapped", None),
        ("graphc sublinear", None),
    ]  # fmt: skip
    assert all(row["calls"]["kernels"] > 0 and row["declined"] == [] for row in rows)
    assert all(0 < row["modelled_milliseconds"] < 1 for row in rows)
    assert {(row["milliseconds"], row["samples_per_second"]) for row in rows} == {(4.0, 1000.0)}
    assert all(row["planned_bytes"] > 0 for row in rows)
    assert {row["with_host_copies"] for row in rows} == {4.0}
    kept = json.loads((machine.parent / "gpu_algorithms.json").read_text())
    assert len(kept["algorithms"]) >= 5


def test_a_repeated_step_is_one_on_the_same_inputs(machine):
    """Also once a graph is replayed."""
    losses = []
    for repeats in (0, 2):
        made = gpu.graphc_step(CASE, "fp32", "none", machine.parent)
        found = [made.from_host()["loss"] for _ in range(6 - 2 * repeats)]
        for _ in range(repeats):
            made.step()
            found += [None, made.from_host()["loss"]]
        losses.append(found)
    whole, partly = losses
    assert [loss for loss in partly if loss is not None] == [whole[i] for i in (0, 1, 3, 5)]
    assert len(set(map(float, whole))) == 6


def test_what_fails_and_what_is_late_is_said(monkeypatch, machine):
    def fails():
        raise RuntimeError("no memory")

    monkeypatch.setattr(gpu_peers, "systems", lambda *given: [("a peer", fails)])
    rows = rows_of(monkeypatch, machine)
    assert rows[-1]["problem"] == "RuntimeError: no memory"
    rows = rows_of(monkeypatch, machine, "--minutes", "0")
    assert {row["problem"] for row in rows} == {"no time was left"}
