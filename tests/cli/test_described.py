"""JSON says which plan it is about, or why there is none; options that do nothing are errors."""

import inspect
import json

import pytest
from cli.running import run

import graphc as g
from graphc.byte_sizes import format_bytes
from graphc.errors import OptionError
from graphc.models import mlp, resnet

SMALL = ["layers=3", "hidden=16", "inputs=8", "batch=4"]


def found_by(capsys, *arguments):
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    return json.loads(out)


def test_an_object_has_all_that_its_plan_is_made_by(capsys):
    found = found_by(
        capsys, "plan", "mlp", *SMALL, "--device", "a100", "--budget", "1MiB", "--keep-order"
    )
    defaults = {n: p.default for n, p in inspect.signature(mlp).parameters.items()}
    given = {"layers": 3, "hidden": 16, "inputs": 8, "batch": 4}
    assert found["arguments"] == {**defaults, **given}
    assert set(defaults) - set(given)
    assert found["device"] == "a100"
    assert found["budget_bytes"] == 2**20
    assert found["goal"] == "arena of at most 1.00 MiB"
    assert found["options"]["budget"] == "1MiB"
    assert found["options"]["reorder"] is False
    assert found["options"]["optimizer"] == "sgd"
    plan = g.plan(
        mlp(**given), optimizer=g.optim.SGD(), device="a100", budget="1MiB", reorder=False
    )
    assert found["arena_bytes"] == plan.arena_bytes
    label = plan.graph.nodes[plan.peak_step].label
    assert found["peak_node"] == {"number": plan.peak_step, "name": label}
    assert found["bytes_by_kind"] == plan.bytes_by_kind
    assert found["bytes_by_kind"]["state"] == plan.state_bytes
    assert found["arena_by_strategy"]["packed"] == plan.arena_bytes


def test_two_plans_that_differ_have_two_objects(capsys):
    asked = ([], ["batch=5"], ["--recompute", "cheap"], ["--device", "t4"], ["--optimizer", "adam"])
    objects = []
    for more in asked:
        found = found_by(capsys, "plan", "mlp", *SMALL[:3], *more)
        objects.append(json.dumps([found[k] for k in ("arguments", "options", "device")]))
    assert len(set(objects)) == len(asked)


def test_rows_of_a_comparison_have_their_own_options(capsys):
    rows = found_by(capsys, "compare", "mlp", *SMALL, "--budget", "1MiB")
    for row in rows[:-2]:
        assert row["options"]["recompute"] == row["recompute"]
    assert rows[-1]["budget_bytes"] == 2**20
    assert all(row["arguments"]["batch"] == 4 for row in rows)


def test_an_object_of_a_plan_from_a_file_has_what_the_file_knows(capsys, tmp_path):
    path = str(tmp_path / "plan.json")
    made = found_by(capsys, "plan", "mlp", *SMALL, "--device", "l4", "-o", path)
    found = found_by(capsys, "plan", path)
    assert found["device"] == "l4"
    assert {name: made[name] for name in found if name != "model"} == {
        name: found[name] for name in found if name != "model"
    }
    assert found["model"] == path


def test_arguments_unknown_to_json_are_printed_as_text(capsys):
    found = found_by(capsys, "plan", "resnet", "units=(1,1,1,1)", "batch=1", "image=32")
    assert found["arguments"]["units"] == [1, 1, 1, 1]
    assert set(inspect.signature(resnet).parameters) == set(found["arguments"])


def test_a_budget_that_cannot_be_met_is_an_object_and_exits_with_3(capsys):
    code, out, err = run(capsys, "plan", "mlp", *SMALL, "--budget", "1KiB", "--json")
    assert (code, err) == (3, "")
    found = json.loads(out)
    with pytest.raises(g.BudgetError) as caught:
        g.plan(mlp(layers=3, hidden=16, inputs=8, batch=4), optimizer=g.optim.SGD(), budget="1KiB")
    error = caught.value
    assert (found["least_bytes"], found["bound_bytes"]) == (error.least_bytes, error.bound_bytes)
    assert found["node"] == error.node != ""
    assert [(each["names"], each["bytes"]) for each in found["values"]] == list(error.values)
    assert any(each["names"].startswith("workspace of") for each in found["values"])
    for each in found["values"]:
        assert f"{format_bytes(each['bytes'])}  {each['names']}" in found["error"]
    assert found["error"] == str(error)
    assert (found["model"], found["device"], found["budget_bytes"]) == ("mlp", "cpu", 1024)
    assert found["arguments"]["batch"] == 4
    code, out, err = run(capsys, "plan", "mlp", *SMALL, "--budget", "1KiB")
    assert (code, out) == (3, "")
    assert err.startswith("graphc: no plan found")
    assert run(capsys, "plan", "mlp", *SMALL, "--budget", "1KiBB", "--json")[0] == 2


def test_a_frontier_and_batches_have_all_that_their_plans_are_made_by(capsys):
    defaults = {n: p.default for n, p in inspect.signature(mlp).parameters.items()}
    given = {"layers": 1, "hidden": 16, "inputs": 8}
    small = [f"{name}={size}" for name, size in given.items()]
    found = found_by(capsys, "plan", "mlp", *small, "batch=4", "--frontier", "--device", "t4")
    assert (found["model"], found["device"]) == ("mlp", "t4")
    assert found["arguments"] == {**defaults, **given, "batch": 4}
    assert (found["options"]["allocate"], found["options"]["optimizer"]) == ("packed", "sgd")
    assert found["frontier"]
    found = found_by(capsys, "batch", "mlp", *small, "--budget", "50KiB", "--keep-order")
    assert found["arguments"] == {k: v for k, v in {**defaults, **given}.items() if k != "batch"}
    assert found["options"]["reorder"] is False
    assert (found["model"], found["budget_bytes"]) == ("mlp", 50 * 1024)


def test_errors_name_the_device_that_auto_selects(capsys):
    here = g.plan(outputs=[g.input("x", (4,))], device="auto").device.name
    code, out, _ = run(
        capsys, "plan", "mlp", *SMALL, "--device", "auto", "--budget", "1KiB", "--json"
    )
    assert (code, json.loads(out)["device"]) == (3, here)
    assert json.loads(out)["arguments"]["batch"] == 4


def test_of_several_budgets_the_object_names_the_one_that_cannot_be_met(capsys):
    budgets = ("--budget", "1GiB", "--budget", "2KiB", "--budget", "1KiB")
    code, out, err = run(capsys, "compare", "mlp", *SMALL, *budgets, "--json")
    assert (code, err) == (3, "")
    found = json.loads(out)
    assert found["budget_bytes"] == 2048
    assert found["options"]["budget"] == "2KiB"
    assert found["least_bytes"] > 2048


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan", "--json", "--text"), "give only one of --json and --text"),
        (("plan", "--text", "--frontier"), "give only one of --frontier and --text"),
        (("plan", "--optimizer", "none", "--learning-rate", "3"), "--learning-rate has no effect"),
        (("plan", "--optimizer", "none", "--weight-decay", "0"), "--weight-decay has no effect"),
        (("plan", "--optimizer", "none", "--schedule", "cosine"), "--schedule has no effect"),
        (("plan", "--optimizer", "none", "--warmup", "3"), "--warmup has no effect"),
        (("plan", "--optimizer", "none", "--steps", "10000"), "--steps has no effect"),
        (
            ("plan", "--optimizer", "none", "--recompute", "cheap"),
            "recomputation requires a training step",
        ),
        (("plan", "--optimizer", "none", "--budget", "1MiB"), "budgets require a training step"),
        (("plan", "--optimizer", "none", "--clip-norm", "1"), "give an optimizer"),
        (("plan", "--steps", "10000"), "give --schedule or --warmup"),
        (("plan", "--budget", "1GiB", "--recompute", "none"), "omit recompute='none' or budget"),
        (("plan", "--max-extra-flops", "1", "--recompute", "none"), "omit recompute='none'"),
        (("plan", "--feature-map-budget", "1MiB", "--recompute", "none"), "omit recompute='none'"),
        (("plan", "--keep-order", "--allocate", "sharing"), "which keeps it anyway"),
        (("plan", "--frontier", "--recompute", "none"), "leave out --recompute"),
        (("explain", "--peak", "--optimizer", "none", "--warmup", "1"), "--warmup has no effect"),
        (("view", "--strategies", "none,optimal", "--budget", "1MiB"), "omit recompute='none'"),
        (("view", "--optimizer", "none", "--schedule", "cosine"), "--schedule has no effect"),
        (("compare", "--optimizer", "none", "--learning-rate", "3"), "has no effect"),
        (("compare", "--optimizer", "none", "--budget", "1MiB"), "only to training steps"),
        (("batch", "--allocate", "none", "--keep-order"), "which keeps it anyway"),
        (("profile", "--optimizer", "none", "--weight-decay", "1"), "has no effect"),
        (("plan", "layers=4"), "layers is given twice, as 3 and 4; give one"),
        (("view", "--strategies", "none,cheap", "--allocate", "packed"), "leave out --allocate"),
    ],
)
def test_options_that_contradict_or_do_nothing_are_errors(
    capsys, tmp_path, monkeypatch, arguments, said
):
    monkeypatch.chdir(tmp_path)
    command, *options = arguments
    sizes = SMALL if command != "batch" else SMALL[:3]
    code, out, err = run(capsys, command, "mlp", *sizes, *options)
    assert (code, out) == (2, "")
    assert said in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("goal", [{"budget": "1GiB"}, {"max_extra_flops": 0.3}])
def test_keywords_that_contradict_are_errors(goal):
    with pytest.raises(OptionError, match="omit recompute='none' or"):
        g.plan(mlp(), optimizer=g.optim.SGD(), recompute="none", **goal)
    with pytest.raises(OptionError, match="recomputation requires a training step"):
        g.compile(mlp(), recompute="cheap")
    assert g.plan(mlp(), optimizer=g.optim.SGD(), **goal).recompute == "optimal"
    assert g.plan(mlp(), optimizer=g.optim.SGD()).recompute == "none"
