"""The first line of plan, view, compare and explain: whether the plan fits, and what would."""

import functools
import json
import re

import pytest
from cli.running import run

import graphc as g
from graphc.byte_sizes import format_bytes, parse_bytes
from graphc.cli import advice, plans
from graphc.devices.device_memory import GIB, MIB, DeviceMemory, machine_memory
from graphc.models import mlp

DEEP = ("layers=5", "hidden=64", "inputs=64", "batch=512")
SIZES = {"layers": 5, "hidden": 64, "inputs": 64, "batch": 512}


@functools.cache
def planned(**options):
    return g.plan(mlp(**SIZES), optimizer=g.optim.SGD(), **options)


@pytest.fixture
def has(monkeypatch):
    """Give the device so many bytes for an arena."""

    def give(usable_bytes, name="cpu"):
        memory = DeviceMemory(name, 2 * usable_bytes, usable_bytes)
        for module in (advice, plans):
            monkeypatch.setattr(module, "memory_of", lambda device: memory)

    return give


def first_line(capsys, *arguments):
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    return out.splitlines()[0]


def test_a_plan_that_fits_says_by_how_much(capsys, has):
    arena = planned().arena_bytes
    has(arena + 3 * MIB)
    total = format_bytes(arena + 3 * MIB)
    told = f"fits this machine: {format_bytes(arena)} of {total}, 3.00 MiB to spare"
    assert first_line(capsys, "plan", "mlp", *DEEP, "--text") == told
    assert first_line(capsys, "explain", "mlp", *DEEP, "--peak") == told
    has(arena)
    assert first_line(capsys, "plan", "mlp", *DEEP).endswith("0 B to spare")


def test_this_machine_is_the_cpu_of_a_plan(capsys):
    code, out, _ = run(capsys, "plan", "mlp", *DEEP, "--json")
    assert code == 0
    found = json.loads(out)
    assert found["usable_bytes"] == machine_memory().usable_bytes
    assert found["fits"] is True


@pytest.mark.parametrize(
    "command", ["plan", pytest.param("explain", marks=pytest.mark.slow), "view"]
)
def test_a_plan_that_is_over_says_by_how_much_and_the_budget_that_fits(
    capsys, has, tmp_path, command
):
    """The budget in the line is one that --budget takes, and it gives the plan that it tells of."""
    arena = planned().arena_bytes
    has(arena * 3 // 4)
    more = {"plan": [], "explain": ["--peak"], "view": ["-o", str(tmp_path / "page.html")]}[command]
    out = run(capsys, command, "mlp", *DEEP, *more)[1]
    over = format_bytes(arena - arena * 3 // 4)
    first = f"needs {format_bytes(arena)}, {over} more than this machine has"
    assert out.startswith(first)
    told = " ".join(out.split())
    match = re.search(r"--budget (\S+) fits, with (\+[\d.]+%) time", told)
    assert match, told
    found = planned(budget=match[1])
    assert found.arena_bytes <= parse_bytes("budget", match[1]) <= arena * 3 // 4
    assert f"{found.recomputation.extra_time_fraction:+.1%}" == match[2]
    assert match[2] != "+0.0%"


@pytest.mark.slow
def test_the_same_input_gives_the_same_line(capsys, has):
    has(planned().arena_bytes * 3 // 4)
    assert len({first_line(capsys, "plan", "mlp", *DEEP) for _ in range(2)}) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--recompute", "cheap"), "in place of --recompute cheap fits"),
        pytest.param(
            ("--max-extra-flops", "0.01"),
            "in place of --max-extra-flops fits",
            marks=pytest.mark.slow,
        ),
        (("--optimizer", "none"), "a smaller batch may fit: `graphc batch` finds"),
    ],
)
def test_options_replaced_by_a_budget_are_named(capsys, has, options, said):
    arguments = ("plan", "mlp", *DEEP, *options)
    arena = json.loads(run(capsys, *arguments, "--json")[1])["arena_bytes"]
    has(arena * 15 // 16)
    out = run(capsys, *arguments)[1]
    assert said in " ".join(out.split("To fit:")[1].split())


def test_where_no_budget_helps_the_least_is_told(capsys, has):
    state = planned().state_bytes
    has(state + 1024)
    with pytest.raises(g.BudgetError) as caught:
        planned(budget=advice.as_budget(state + 1024))
    least = format_bytes(caught.value.least_bytes)
    out = run(capsys, "plan", "mlp", *DEEP)[1]
    assert f"To fit: no budget fits: the least found is {least}" in out
    has(state - 1)
    out = run(capsys, "plan", "mlp", *DEEP)[1]
    assert f"To fit: its states alone are {format_bytes(state)}" in out


def test_a_plan_from_a_file_says_whether_it_fits(capsys, has, tmp_path):
    path = str(tmp_path / "plan.json")
    run(capsys, "plan", "mlp", *DEEP, "--json", "-o", path)
    arena = planned().arena_bytes
    has(arena)
    assert first_line(capsys, "plan", path).startswith("fits this machine")
    has(arena - 5 * MIB)
    assert first_line(capsys, "plan", path).endswith("5.00 MiB more than this machine has")


@pytest.mark.slow
def test_compare_says_which_rows_fit(capsys, has):
    sublinear = planned(recompute="sublinear")
    has(sublinear.arena_bytes)
    line = first_line(capsys, "compare", "mlp", *DEEP)
    found = [
        row for row in json.loads(run(capsys, "compare", "mlp", *DEEP, "--json")[1])
        if row["arena_bytes"] <= sublinear.arena_bytes
    ]  # fmt: skip
    best = min(found, key=lambda row: row["extra_time_fraction"])
    name = f"{best['recompute']}, {best['allocate']}"
    assert line.startswith(f"fits this machine: {len(found)} of 9; the fastest is {name}, ")
    has(planned().state_bytes + 1024)
    assert "no budget fits" in first_line(capsys, "compare", "mlp", *DEEP)


@pytest.mark.slow
def test_plans_for_several_devices_are_each_judged_by_their_own(capsys, tmp_path, monkeypatch):
    paths = {}
    for device in ("cpu", "t4", "l4"):
        paths[device] = str(tmp_path / f"{device}.json")
        run(capsys, "plan", "mlp", *DEEP, "--device", device, "-o", paths[device])
    told = first_line(capsys, "compare", *paths.values())
    assert told == "fits its own device: 3 of 3"
    arena = planned(device="t4").arena_bytes
    sizes = {"cpu": 2**40, "t4": arena - 5 * MIB, "l4": 2**40}
    monkeypatch.setattr(
        advice, "memory_of", lambda device: DeviceMemory(device.name, 2**40, sizes[device.name])
    )
    told = first_line(capsys, "compare", *paths.values())
    assert told == "fits its own device: 2 of 3; t4.json, packed needs 5.00 MiB more than t4 has"
    out = run(capsys, "compare", "mlp", *DEEP, paths["t4"])[1]
    assert out.startswith(
        "fits its own device: 9 of 10; t4.json, packed needs 5.00 MiB more than t4 has"
    )


@pytest.mark.slow
def test_a_gpu_may_be_named_as_the_device(capsys):
    """Its name is that of its profile: the same plan as by --device cuda and --roofline."""
    named, by_roofline = (
        run(capsys, "plan", "mlp", *DEEP, *device)[1]
        for device in (("--device", "a100"), ("--device", "cuda", "--roofline", "a100"))
    )
    assert named == by_roofline
    assert named.startswith("fits a100: ")
    assert " of 78.38 GiB, " in named
    assert first_line(capsys, "plan", "mlp", *DEEP, "--device", "cuda").startswith("fits h200: ")
    code, _, err = run(capsys, "plan", "mlp", *DEEP, "--device", "a200")
    assert code == 2
    assert "a100" in err
    assert planned(device="a100").text() == planned(device="cuda", roofline="a100").text()


def test_a_printed_plan_does_not_depend_on_this_machine(capsys, has):
    plan = planned().text()
    has(1)
    assert planned().text() == plan
    assert "machine" not in plan


def test_a_budget_in_words_is_the_largest_of_two_digits_below():
    assert advice.as_budget(GIB) == "1.00GiB"
    assert advice.as_budget(GIB - 1) == "1023.99MiB"
    for size in (5 * GIB + 12345, 7 * MIB - 1, 79 * GIB, 123456789012):
        told = parse_bytes("budget", advice.as_budget(size))
        assert told <= size < told + (GIB if size >= GIB else MIB) // 100 + 2
