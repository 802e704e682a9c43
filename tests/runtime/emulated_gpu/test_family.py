"""Programs of several sizes in one arena of an emulated GPU, each with its own CUDA graph."""

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc as g
from graphc import Family, Program
from graphc.runtime.gpu.backend import GpuBackend

IGNORED = -100


def build(rows):
    x, labels = g.input("x", (rows, 12)), g.input("labels", (rows,), "int32")
    h = g.dropout(g.tanh(g.linear(x, 16, name="first")), 0.0)
    table = g.constant(np.arange(rows, dtype=np.float32).reshape(rows, 1) / rows)
    return g.softmax_cross_entropy(
        g.linear(h * table, 5, name="last"), labels, ignore_index=IGNORED
    )


def feeds(rows, seed):
    random = np.random.default_rng((rows, seed))
    x = random.standard_normal((rows, 12)).astype(np.float32)
    return {"x": x, "labels": random.integers(0, 5, rows).astype(np.int32)}


def family_of(plan, accelerator):
    owner = Program(plan.largest, backend=GpuBackend(plan.largest, accelerator))
    programs = [
        owner if each is plan.largest
        else Program(each, backend=GpuBackend(each, accelerator, within=owner.backend),
                     within=owner)
        for each in plan.plans
    ]  # fmt: skip
    return Family(plan, programs, owner, {"x": 0, "labels": IGNORED})


@pytest.fixture
def counting(monkeypatch):
    """The sizes that are allocated on the device."""
    sizes = []
    allocate = EmulatedDevice.allocate

    def counted(self, size):
        sizes.append(size)
        return allocate(self, size)

    monkeypatch.setattr(EmulatedDevice, "allocate", counted)
    return sizes


def test_mixed_steps_equal_those_of_one_program_per_shape(counting):
    optimizer = g.optim.Adam(1e-2)
    plan = g.plan_family(build, {"rows": (4, 16, 9)}, optimizer=optimizer, device="cuda")
    family = family_of(plan, EmulatedDevice())
    assert counting == [plan.arena_bytes] == [family.arena_bytes]
    alone = {
        rows: Program(each, backend=GpuBackend(each, EmulatedDevice()))
        for rows, each in (
            (n, g.plan(build(n), optimizer=optimizer, device="cuda")) for n in (4, 9, 16)
        )
    }
    states = {name: array.copy() for name, array in family.states.items()}
    for step, rows in enumerate((4, 9, 16, 9, 4, 4, 16, 16, 9)):  # the second step is captured
        program, given = alone[rows], feeds(rows, step)
        program.states.update(states)
        assert family.step(given)["loss"] == program.step(given)["loss"]
        states = {name: array.copy() for name, array in program.states.items()}
        assert {n: a.tobytes() for n, a in family.states.items()} == {
            n: a.tobytes() for n, a in states.items()
        }


def test_a_padded_step_ignores_the_rest():
    """The network's table depends on the size, so compare with explicit padding."""
    plan = g.plan_family(build, {"rows": (4, 16)}, optimizer="sgd", device="cuda")
    family, other = (family_of(plan, EmulatedDevice()) for _ in range(2))
    for rows in (3, 7, 16, 5, 1):
        given = feeds(rows, 0)
        whole = 4 if rows <= 4 else 16
        padded = {
            "x": np.zeros((whole, 12), np.float32),
            "labels": np.full(whole, IGNORED, np.int32),
        }
        for name, array in given.items():
            padded[name][:rows] = array
        assert family.step(given)["loss"] == other.step(padded)["loss"]
    batches = [feeds(rows, 1) for rows in (4, 16, 2, 9, 9, 3)]
    expected = [other.step(batch)["loss"] for batch in batches]
    assert [outputs["loss"] for outputs in family.steps(batches)] == expected
