"""Commands for several sizes of a network: graphc plan --sizes and graphc buckets."""

import json

import pytest
from cli.running import run

import graphc as g
from graphc.cli.buckets import POINTS
from graphc.compiler.bucketing import interpolated, spread
from graphc.models import gpt2
from graphc.runtime.gpu.step_model import model_step

SMALL = ("layers=1", "width=16", "heads=2", "vocab=40", "batch=2", "positions=64")


def small(seq_len):
    return gpt2(layers=1, width=16, heads=2, vocab=40, batch=2, positions=64, seq_len=seq_len)


def test_a_table_of_plans_within_a_budget(capsys):
    plain = [g.plan(small(n), optimizer="sgd").arena_bytes for n in (8, 16, 32)]
    budget = (plain[1] + 7 * plain[2]) // 8
    arguments = ("plan", "gpt2", *SMALL, "--sizes", "seq_len=8,16,32", "--budget", str(budget))
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    head, *rows, last = out.splitlines()
    assert head.split() == ["size", "arena", "recomputed", "extra", "time"]
    assert [row.split()[0] for row in rows] == ["seq_len=8", "seq_len=16", "seq_len=32"]
    assert "one arena of" in last
    code, out, err = run(capsys, *arguments, "--json")
    found = json.loads(out)
    assert found["model"] == "gpt2"
    assert found["arguments"]["layers"] == 1
    assert "seq_len" not in found["arguments"]
    assert found["budget_bytes"] == budget >= found["arena_bytes"]
    counts = [row["recomputed_nodes"] for row in found["sizes"]]
    assert counts[:2] == [0, 0]
    assert counts[2] > 0
    assert [row["size"] for row in found["sizes"]] == [{"seq_len": n} for n in (8, 16, 32)]


def test_several_arguments_give_all_combinations(capsys):
    sizes = ("--sizes", "seq_len=8", "--sizes", "batch=1,2")
    code, out, err = run(capsys, "plan", "gpt2", *SMALL, *sizes)
    assert code == 0, err
    assert "seq_len=8 batch=1" in out
    assert "seq_len=8 batch=2" in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--sizes", "seq_len=8,16", "--frontier"), 2, "leave out --frontier"),
        (("--sizes", "seq_len=8,16", "-o", "plan.json"), 2, "leave out --output"),
        (("--sizes", "length=8,16"), 2, "no argument 'length' for its size"),
        (("--sizes", "8,16"), 2, "is not of the form key=value"),
        (("--sizes", "seq_len=8,8"), 2, "twice; list each size once"),
        (("--sizes", "seq_len=8,16", "--budget", "1KiB"), 3, "seq_len=8: "),
        (("--sizes", "seq_len=8,16", "--ranks", "2"), 2, "runs in one process"),
    ],
)
def test_invalid_sizes_are_refused(capsys, tmp_path, monkeypatch, arguments, code, message):
    monkeypatch.chdir(tmp_path)
    found, _, err = run(capsys, "plan", "gpt2", *SMALL, *arguments)
    assert found == code
    assert message in err


@pytest.fixture
def lengths(tmp_path):
    path = tmp_path / "lengths.txt"
    path.write_text("8 50\n10 20\n\n11\n11\n24 7\n32\n")
    return str(path)


def test_sizes_for_lengths_on_a_gpu(capsys, lengths):
    arguments = ("buckets", lengths, "--model", "gpt2", *SMALL, "--k", "2", "--device", "a100")
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    found = json.loads(out)
    plans = {n: g.plan(small(n), optimizer="sgd", device="a100") for n in (8, 10, 11, 24, 32)}
    cost = {n: model_step(plan).seconds for n, plan in plans.items()}
    expected = g.buckets({8: 50, 10: 20, 11: 2, 24: 7, 32: 1}, 2, cost=cost)
    assert tuple(found["sizes"]) == expected.sizes
    assert found["expected_cost"] == pytest.approx(expected.expected_cost, rel=1e-12)
    assert found["single_cost"] == pytest.approx(cost[32], rel=1e-12)
    assert found["family"]["arena_bytes"] == plans[32].arena_bytes
    assert found["device"] == "a100"


def test_sizes_are_rounded_and_named_as_asked(capsys, lengths, tmp_path):
    model = tmp_path / "net.py"
    model.write_text(
        "import graphc as g\n"
        "def build(rows):\n"
        "    return g.mean(g.linear(g.input('x', (rows, 4)), 3, name='layer'))\n"
    )
    code, out, err = run(
        capsys, "buckets", lengths, "--model", f"{model}:build", "--argument", "rows", "--k", "9",
        "--multiple-of", "16",
    )  # fmt: skip
    assert code == 0, err
    assert "sizes: rows=16,32" in out
    assert "one size of 32" in out
    assert "a plan per length" in out
    told = "80 steps of 5 lengths from 8 to 32; cpu time modeled at 2 lengths\n"
    assert told in out  # all sizes: 16 and 32
    (row,) = (line for line in out.splitlines() if "a plan per length" in line)
    padded = 1 - (50 * 8 + 20 * 10 + 2 * 11 + 7 * 24 + 32) / (72 * 16 + 8 * 32)
    assert f" {padded:.1%} " in row


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("8\nten\n", (), "line 2 of "),
        ("8 1 1\n", (), "line 1 of "),
        ("0\n", (), "length of at least 1"),
        ("\n", (), "has no lengths"),
        ("8\n", ("--k", "0"), "--k must be"),
        ("8\n", ("--multiple-of", "0"), "--multiple-of must be"),
        ("8\n", ("--argument", "length"), "no argument 'length' for its size"),
    ],
)
def test_invalid_lengths_are_refused(capsys, tmp_path, text, options, message):
    path = tmp_path / "lengths.txt"
    path.write_text(text)
    code, _, err = run(capsys, "buckets", str(path), "--model", "gpt2", *SMALL, *options)
    assert code == 2
    assert message in err


def test_a_missing_file_of_lengths_is_refused(capsys, tmp_path):
    code, _, err = run(capsys, "buckets", str(tmp_path / "none.txt"), "--model", "gpt2")
    assert code == 2
    assert "cannot read the lengths of" in err


def test_times_between_points_are_interpolated():
    points = spread(range(10, 1000), POINTS)
    assert len(points) == POINTS
    assert (points[0], points[-1]) == (10, 999)
    assert spread([5, 7], POINTS) == [5, 7]
    cost = interpolated([10, 20, 40], [1.0, 2.0, 6.0])
    assert [cost(n) for n in (10, 15, 20, 30, 40)] == [1.0, 1.5, 2.0, 4.0, 6.0]
