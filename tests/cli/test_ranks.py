"""graphc ranks: each row is a plan and its model."""

import json

import pytest
from cli.running import run

import graphc as g
from graphc.models import mlp
from graphc.plans.rank_model import model_rank

SIZES = {"layers": 3, "hidden": 32, "inputs": 16, "batch": 8}
ASKED = ("ranks", "mlp", *(f"{name}={size}" for name, size in SIZES.items()))


@pytest.mark.parametrize("shard", ["none", "states"])
def test_rows_are_plans_of_one_rank(capsys, shard):
    options = ("--ranks", "9", "--optimizer", "adam", "--shard", shard)
    _, out, _ = run(capsys, *ASKED, *options, "--json")
    found = json.loads(out)
    assert found["arguments"]["hidden"] == SIZES["hidden"]
    assert [row["ranks"] for row in found["ranks"]] == [1, 2, 4, 8, 9]
    for row in found["ranks"]:
        plan = g.plan(mlp(**SIZES), optimizer=g.optim.Adam(), ranks=row["ranks"], shard=shard)
        model = model_rank(plan)
        assert row["arena_bytes"] == plan.arena_bytes
        assert row["state_bytes"] == plan.state_bytes
        assert row["step_seconds"] == model.seconds
        assert row["sent_bytes"] == model.sent_bytes
        by_algorithm = row["exchange_seconds_by_algorithm"]
        assert row["exchange_seconds"] <= min(by_algorithm.values())
        assert row["efficiency"] == found["ranks"][0]["step_seconds"] / row["step_seconds"]


def test_the_table_has_a_line_for_each_row(capsys):
    _, out, _ = run(capsys, *ASKED, "--ranks", "4")
    head, columns, *rows = out.splitlines()
    assert head.startswith("a step of a rank on cpu, in milliseconds by the cost model")
    assert columns.split()[:3] == ["ranks", "arena", "states"]
    assert [row.split()[0] for row in rows] == ["1", "2", "4"]
