"""The largest batch that fits: against every batch up to it, and one more."""

import json

import pytest
from cli.running import run

import graphc as g
from graphc import LargestBatch
from graphc.cli import batch as command
from graphc.devices.device_memory import MIB, DeviceMemory
from graphc.errors import GraphcError, OptionError
from graphc.models import mlp, unet

SIZES = {"layers": 4, "hidden": 32, "inputs": 32}

SMALL = {"optimizer": g.optim.SGD(), "kernels": "numpy"}
"""What plans of a few KiB are asked for: native products take a workspace of 64 KiB."""


def make(batch):
    return mlp(**SIZES, batch=batch)


def fits(batch, limit, **options):
    """Whether the plan that the options ask for fits, by planning it."""
    try:
        return g.plan(make(batch), **SMALL, **options).arena_bytes <= limit
    except g.BudgetError:
        return False


@pytest.mark.parametrize("limit", [MIB // 8])
@pytest.mark.parametrize(
    ("asked", "planned"),
    [
        ({}, {}),
        ({"recompute": "sublinear"}, {"recompute": "sublinear"}),
        pytest.param({"max_extra_flops": 0.33}, {"max_extra_flops": 0.33}, marks=pytest.mark.slow),
        pytest.param({"recompute": "optimal"}, {"budget": True}, marks=pytest.mark.slow),
    ],
)
def test_the_answer_fits_and_one_more_does_not(limit, asked, planned):
    if "budget" in planned:
        planned = {"budget": limit}
    found = g.largest_batch(make, limit, **SMALL, **asked)
    assert found.plan.arena_bytes <= limit
    assert found.plan.graph.inputs[0].type.shape[0] == found.batch
    assert fits(found.batch, limit, **planned)
    assert not fits(found.batch + 1, limit, **planned)


@pytest.mark.slow
def test_recomputation_lets_a_larger_batch_fit():
    plain, most = (
        g.largest_batch(make, "256KiB", optimizer=g.optim.SGD(), recompute=policy)
        for policy in ("none", "optimal")
    )
    assert plain.batch < most.batch
    assert plain.plan.recomputation.nodes == 0 < most.plan.recomputation.nodes


def test_no_other_batch_up_to_the_answer_is_over():
    """Where bytes grow with the batch, the answer is that of trying them all."""
    limit = 45_000
    found = g.largest_batch(make, limit, **SMALL)
    every = [batch for batch in range(1, 2 * found.batch) if fits(batch, limit)]
    assert every == list(range(1, found.batch + 1))
    assert found.batch > 10


def test_any_recomputation_beside_copies_to_the_host():
    options = {"recompute": "optimal", "host_budget": "1GiB", **SMALL}
    found = g.largest_batch(make, MIB // 8, **options)
    assert found is not None
    assert found.plan.arena_bytes <= MIB // 8
    alone = g.largest_batch(make, MIB // 8, recompute="optimal", **SMALL)
    assert found.batch >= alone.batch


def test_a_batch_of_one_that_does_not_fit_is_an_error():
    assert g.largest_batch(make, 1000, optimizer=g.optim.SGD()) is None


def test_few_plans_are_made():
    """Bytes are nearly a line in the batch: it is not walked up one by one."""
    made = []

    def counted(batch):
        made.append(batch)
        return unet(width=4, depth=1, image=16, batch=batch)

    found = g.largest_batch(counted, "20MiB", optimizer=g.optim.SGD())
    assert found.batch > 100
    assert len(made) <= 12


@pytest.mark.parametrize("policy", [pytest.param("none", marks=pytest.mark.slow), "optimal"])
def test_few_plans_are_made_where_the_answer_is_huge(policy):
    """A few bytes an example in the memory of a large GPU."""
    made = []

    def counted(batch):
        made.append(batch)
        return mlp(layers=1, hidden=8, inputs=4, classes=3, batch=batch)

    options = {"optimizer": g.optim.SGD(), "device": "a100", "recompute": policy}
    found = g.largest_batch(counted, "78GiB", **options)
    assert found.batch > 10**8
    assert found.plan.arena_bytes <= 78 * 2**30
    assert len(made) <= 16


@pytest.mark.parametrize("start", [2, 50, 10**6])
def test_the_answer_is_the_same_wherever_the_search_begins(start):
    first, other = (g.largest_batch(make, 60_000, start=begin, **SMALL) for begin in (1, start))
    assert first.batch == other.batch
    assert first.plan.arena_bytes == other.plan.arena_bytes


def test_a_network_that_does_not_grow_with_its_batch_ends_the_search():
    with pytest.raises(OptionError, match="a batch of 1,099,511,627,776, which fits"):
        g.largest_batch(lambda batch: make(3), "1MiB", optimizer=g.optim.SGD())


@pytest.mark.slow
def test_the_command_prints_what_python_finds(capsys, monkeypatch):
    asked, begun = [], []

    def answered(make, memory, start, **options):
        asked.append(options)
        begun.append(start)
        assert make(3).type == make(5).type
        assert memory == "0.25MiB"
        return LargestBatch(1234, g.plan(make(2), optimizer=g.optim.SGD()))

    monkeypatch.setattr(command, "memory_of", lambda device: DeviceMemory("cpu", MIB, MIB // 4))
    monkeypatch.setattr(command, "largest_batch", answered)
    arguments = ["batch", "mlp", *(f"{name}={size}" for name, size in SIZES.items())]
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert out.startswith("this machine: 0.25MiB for an arena\n")
    assert max(map(len, out.splitlines())) <= 80
    for flags in ("no recomputation", "--max-extra-flops 0.33", "--budget 0.25MiB"):
        (line,) = (line for line in out.splitlines() if line.strip().startswith(flags))
        assert " 1,234 " in line
    assert [each["recompute"] for each in asked] == ["none", None, "optimal"]
    assert [each["max_extra_flops"] for each in asked] == [None, 0.33, None]
    assert [begun[0], *(each.batch for each in begun[1:])] == [1, 1234, 1234]
    monkeypatch.undo()
    code, out, _ = run(capsys, *arguments, "--budget", "256KiB", "--json")
    rows = json.loads(out)["batches"]
    found = g.largest_batch(make, "256KiB", optimizer=g.optim.SGD())
    assert (rows[0]["batch"], rows[0]["arena_bytes"]) == (found.batch, found.plan.arena_bytes)
    assert rows[0]["batch"] < rows[1]["batch"] <= rows[2]["batch"]


@pytest.mark.parametrize("json", [(), ("--json",)])
def test_the_exit_code_tells_if_no_batch_fits(capsys, json):
    sizes = ("batch", "mlp", "layers=2", "hidden=8", "inputs=4")
    assert run(capsys, *sizes, "--budget", "1KiB", *json)[0] == 3
    assert run(capsys, *sizes, "--budget", "1MiB", *json)[0] == 0


def test_a_function_in_a_file_that_takes_a_batch(capsys, tmp_path):
    (tmp_path / "net.py").write_text(
        "import graphc as g\n"
        "def build(batch, width=8):\n"
        "    return g.mean(g.tanh(g.linear(g.input('x', (batch, 3)), width)))\n"
        "def fixed():\n"
        "    return build(2)\n"
    )
    code, out, err = run(capsys, "batch", f"{tmp_path}/net.py:build", "--budget", "1MiB", "--json")
    assert code == 0, err
    rows = json.loads(out)["batches"]
    assert all(row["batch"] > 1000 for row in rows)
    for arguments, said in (
        ([f"{tmp_path}/net.py:fixed"], "has no argument `batch`"),
        ([f"{tmp_path}/net.py:build", "batch=3"], "leave out batch=..."),
        (["mlp", "--budget", "lots"], "budget must be a size such as 7GiB"),
        (["mlp", "layers=x"], "integer >= 1"),
    ):
        code, _, err = run(capsys, "batch", *arguments)
        assert code == 2
        assert said in err


def test_inference_has_one_answer(capsys):
    code, out, _ = run(capsys, "batch", "mlp", "--optimizer", "none", "--budget", "10MiB", "--json")
    assert code == 0
    assert len(json.loads(out)["batches"]) == 1


def test_a_device_of_unknown_memory_asks_for_a_budget(capsys, monkeypatch):
    monkeypatch.setattr(command, "memory_of", lambda device: None)
    code, _, err = run(capsys, "batch", "mlp")
    assert code == 2
    assert "the memory of cpu is unknown; pass it as --budget" in err


def test_errors_of_a_model_for_a_batch_are_reported():
    def refuses(batch):
        raise GraphcError("no")

    with pytest.raises(GraphcError, match="no"):
        g.largest_batch(refuses, "1MiB")
