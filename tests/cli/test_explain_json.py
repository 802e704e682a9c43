"""graphc explain --json: all that the sentences say, as one object."""

import json

import pytest
from cli.running import once, run, unfolded

import graphc as g
from graphc.models import mlp

SIZES = {"layers": 4, "hidden": 64, "inputs": 8, "batch": 512}
MODEL = ["mlp", *(f"{name}={size}" for name, size in SIZES.items())]


def told(*arguments):
    """Return the object that `explain --json` prints."""
    code, out, _ = once("explain", *MODEL, *arguments, "--json")
    assert code == 0
    return json.loads(out)


@pytest.fixture(scope="module")
def plan():
    return g.plan(mlp(**SIZES), optimizer=g.optim.SGD(0.01))


@pytest.mark.parametrize("part", ["peak", "kept", "scopes"])
def test_the_object_has_the_sentences(part):
    found = told(f"--{part}")
    assert set(found) == {"plan", part}
    printed = once("explain", *MODEL, f"--{part}")[1]
    assert found[part]["sentences"] == unfolded(printed).splitlines()[1:]


def test_without_a_choice_it_has_all_but_values():
    found = told()
    assert list(found) == ["plan", "peak", "kept", "scopes"]
    for part in ("peak", "kept", "scopes"):
        assert found[part] == told(f"--{part}")[part]


def test_the_peak_as_numbers(plan):
    peak = told("--peak")["peak"]
    assert (peak["node"], peak["live_bytes"]) == (plan.peak_step, plan.live_bytes)
    assert peak["arena_bytes"] == plan.arena_bytes
    assert sum(peak["bytes_by_kind"].values()) == plan.live_bytes
    alive = [b.bytes for b in plan.live_at(plan.peak_step) if b.kind != "state"]
    assert [buffer["bytes"] for buffer in peak["buffers"]] == alive
    assert peak["lowering"]["changes"]
    for change in peak["lowering"]["changes"]:
        assert change["arena_bytes"] + change["saved_bytes"] == plan.arena_bytes
        assert (change["extra_time_fraction"] is None) == change["how"].startswith("batch=")


def test_saved_values_are_numbers_in_json(plan):
    kept = told("--kept")["kept"]
    assert kept["bytes"] == sum(value["bytes"] for value in kept["values"])
    behind = ("gradient", "mirror")
    for value in kept["values"]:
        nodes = [plan.graph.nodes[value[name]] for name in ("first_node", "last_node")]
        assert all(node.phase in behind for node in nodes)


def test_a_value_as_numbers(plan):
    found = told("%3")["value"]
    value = next(v for v, name in plan.graph.names.items() if name == "%3")
    assert found["name"] == "%3"
    assert found["called"] == f"%3 ({value.node.label})"
    assert found["bytes"] == value.type.bytes
    assert found["node"] == plan.graph.position[value.node]
    assert found["address"] == plan.address(value)
    assert found["readers"] == [s for s, n in enumerate(plan.graph.nodes) if value in n.inputs]
    printed = once("explain", *MODEL, "%3")[1]
    assert found["sentences"] == unfolded(printed).splitlines()[1:]


def test_a_plan_from_a_file_lacks_what_would_lower_it(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    run(capsys, "plan", *MODEL, "--json", "--output", path)
    found = json.loads(run(capsys, "explain", path, "--json")[1])
    assert found["peak"]["lowering"] is None
    assert found["kept"] == told()["kept"]
