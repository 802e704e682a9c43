"""The benchmark of steps on a small network: its seconds mean nothing, its form is checked."""

import json
import subprocess
import sys
from pathlib import Path

import node_times
import numpy as np
import pytest
import step_frameworks
import step_time
from step_cases import Case, draw_feeds, graphc_program, initial_parameters, network

import graphc

CASE = Case(
    "a small mlp", "mlp", "sgd", {"layers": 2, "hidden": 8, "inputs": 6, "classes": 4, "batch": 5}
)
REASON = "this test does without"

PEAKS = """
import json
import numpy as np, step_frameworks
large = np.ones(2**26, np.uint8)
del large
before = step_frameworks.forget_peak()
forgotten = step_frameworks.own_bytes("VmHWM")
held = np.ones(2**25, np.uint8)
del held
print(json.dumps([before, forgotten, step_frameworks.own_bytes("VmHWM")]))
"""


@pytest.fixture
def rows_of(monkeypatch, tmp_path):
    """Run the script on the small network without peers, and read what it writes."""
    path = tmp_path / "step_time.json"
    monkeypatch.setattr(step_time, "CASES", (CASE,))
    monkeypatch.setattr(step_time, "missing", lambda name: None if name == "graphc" else REASON)

    def rows(*options):
        monkeypatch.setattr(sys, "argv", ["step_time.py", "--output", str(path), *options])
        step_time.main()
        return json.loads(path.read_text())

    return rows


@pytest.mark.slow
def test_a_row_has_the_figures_of_what_is_there_and_a_busy_core_has_a_row_of_its_own(rows_of):
    content = rows_of("--rows", "small", "--steps", "2")
    (row,) = content["rows"]
    assert row["network"] == CASE.label
    assert row["steps"] == 2
    assert row["problems"] == {}
    assert row["arena_bytes"] == graphc_program(CASE).arena_bytes
    assert row["graphc_resident_bytes"] > 0
    for key in ("graphc_seconds", "graphc_compile_seconds", "graphc_first_step_seconds"):
        assert row[key] > 0
    assert {row[key] for key in row if key.startswith(("torch_", "compiled_", "jax_"))} == {None}
    assert row["ratio"] is None
    assert content["missing"] == dict.fromkeys(("torch", "compiled", "jax"), REASON)
    assert all(content["versions"].values())

    again = rows_of("--neighbour", "--steps", "1")["rows"]
    assert again[0] == row
    assert [each["network"] for each in again[1:]] == ["a small mlp, one core busy"]
    assert rows_of("--rows", "no such network")["rows"] == again


def test_rows_of_another_commit_are_not_kept(tmp_path):
    circumstances = {"machine": "a slate", "python": "3", "versions": {}, "commit": "abc"}
    path = tmp_path / "rows.json"
    assert step_time.kept_rows(path, circumstances) == {}
    path.write_text(json.dumps({**circumstances, "date": "then", "rows": [{"network": "mlp"}]}))
    assert step_time.kept_rows(path, circumstances) == {"mlp": {"network": "mlp"}}
    assert step_time.kept_rows(path, {**circumstances, "commit": "def"}) == {}


def test_failed_measurements_are_reported_beside_the_others(monkeypatch):
    def fails(case, graph):
        raise RuntimeError("no memory")

    monkeypatch.setitem(step_frameworks.MODULES, "jax", ())
    monkeypatch.setattr(step_frameworks, "jax_step", fails)
    alone = step_frameworks.measured(CASE, ["jax", "graphc"], 0)
    together = step_frameworks.measured(CASE, ["graphc"], 1)
    assert alone.problems == {"jax": "RuntimeError: no memory"}
    assert set(alone.seconds) == set(alone.first_step_seconds) == {"graphc"}
    assert together.first_step_seconds == {}
    row = step_time.row_of(CASE, 1, {"jax": alone}, together)
    assert row["problems"] == alone.problems
    assert row["jax_seconds"] is None
    assert row["graphc_seconds"] == together.seconds["graphc"]


def test_ratios_are_of_the_same_run():
    found = step_frameworks.Measured({"graphc": 3.0, "torch": 2.0, "compiled": 1.5, "jax": 6.0})
    row = step_time.row_of(CASE, 5, {}, found)
    assert [row[key] for key in ("ratio", "ratio_compiled", "ratio_jax")] == [1.5, 2, 0.5]


@pytest.mark.parametrize(("one", "steps"), [(1e-3, 9), (2.5, 6), (40.0, 5)])
def test_long_steps_are_timed_less_often(one, steps):
    assert (
        step_time.steps_within(30, {"graphc": step_frameworks.Measured({"graphc": one})}) == steps
    )


def test_the_busy_process_lives_as_long_as_it_is_wanted():
    with step_time.busy_core() as process:
        assert process.poll() is None
    assert process.poll() is not None


def test_the_peak_is_what_was_resident_at_once_since_it_was_forgotten():
    """In a process of its own: one that has run other tests gives pages back meanwhile."""
    folder = Path(step_frameworks.__file__).parent
    found = subprocess.run(
        [sys.executable, "-c", PEAKS], cwd=folder, capture_output=True, text=True, check=True
    )
    before, forgotten, after = json.loads(found.stdout)
    if before is None:
        pytest.skip("not Linux")
    assert forgotten - before < 2**24
    batch = 2**20  # in which each thread tells the kernel's count of its pages
    assert 2**25 - batch < after - before < 2**26


def test_peers_begin_with_what_graphc_begins_with():
    program = graphc_program(CASE)
    graph = graphc.plan(network(CASE), training=True).graph
    parameters, feeds = initial_parameters(graph), draw_feeds(graph)
    assert set(parameters) == set(program.parameters)
    for name, array in parameters.items():
        np.testing.assert_array_equal(program.parameters[name], array)
    for name, array in draw_feeds(program.graph).items():
        np.testing.assert_array_equal(feeds[name], array)


def test_a_step_is_told_by_op_against_the_peak():
    a, b = graphc.input("a", (4, 8)), graphc.input("b", (8, 16))
    graph = graphc.plan(outputs={"c": graphc.tanh(graphc.matmul(a, b)) + 1.0}).graph
    product = next(node for node in graph.nodes if node.op.name == "matmul")
    flops, moved = 2 * 4 * 8 * 16, 4 * (4 * 8 + 8 * 16 + 4 * 16)
    (row,) = node_times.by_op([product, product], [1e-3, 3e-3], node_times.Peak(1e9, 1e3))
    assert row["nodes"] == 2
    assert row["seconds"] == pytest.approx(4e-3)
    assert row["GFLOP/s"] == pytest.approx(2 * flops / 4e-3 / 1e9)
    assert row["GB/s"] == pytest.approx(2 * moved / 4e-3 / 1e9)
    assert row["of the peak"] == pytest.approx(2 * moved / 1e3 / 4e-3)
    rows = node_times.by_op(graph.nodes, range(len(graph.nodes)), node_times.Peak(1, 1))
    assert [row["seconds"] for row in rows] == sorted(
        (row["seconds"] for row in rows), reverse=True
    )
    assert sum(row["of the step"] for row in rows) == pytest.approx(1)


def test_where_a_step_goes_is_printed(rows_of, monkeypatch, capsys):
    monkeypatch.setattr(node_times, "measured_peak", lambda: node_times.Peak(1e11, 1e10))
    monkeypatch.setattr(sys, "argv", ["step_time.py", "--nodes", "small"])
    step_time.main()
    printed = capsys.readouterr().out
    assert "the machine's peak is 100 GFLOP/s and 10.0 GB/s" in printed
    assert "softmax_cross_entropy" in printed


def test_the_peak_is_measured():
    peak = node_times.measured_peak(64, 2**16)
    assert peak.flops > 0
    assert peak.bytes > 0
