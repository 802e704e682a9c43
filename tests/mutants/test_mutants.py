"""The faults that `make mutants` puts into code, and the reasons for those that are not noticed."""

import ast
import tomllib
from pathlib import Path

import pytest
from mutants.__main__ import Reason, Run, key
from mutants.faults import faults_in
from mutants.groups import GROUPS
from mutants.recording import choice_for, telling

ROOT = Path(__file__).parents[2]
SOURCE = '''"""A docstring with 1 < 2."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    LIMIT = 3


LARGE, SMALL = 1000, 2


def least(values: "list[1]", start: int = 7) -> int:
    """Not 4."""
    if not values or start < 0:
        raise ValueError(f"{start - 1} of {len(values) + 1}", 5)
    for value in values:
        if value == start:
            break
    values.append(min(values))
    return sorted(values, reverse=True)[0] - start
'''
WANTED = {
    ("LARGE, SMALL = 1000, 2", "LARGE, SMALL = 1000, (3)"),
    ("LARGE, SMALL = 1000, 2", "LARGE, SMALL = 1000, (1)"),
    ("if not values or start < 0:", "if (not values and start < 0):"),
    ("if not values or start < 0:", "if (not (not values or start < 0)):"),
    ("if not values or start < 0:", "if (values) or start < 0:"),
    ("if not values or start < 0:", "if not values or (start <= 0):"),
    ("if not values or start < 0:", "if not values or start < (1):"),
    ('raise ValueError(f"{start - 1} of {len(values) + 1}", 5)', "pass"),
    ("if value == start:", "if (value != start):"),
    ("break", "continue"),
    ("values.append(min(values))", "pass"),
    ("values.append(min(values))", "values.append((max(values)))"),
    ("return sorted(values, reverse=True)[0] - start", "return None"),
    ("return sorted(values, reverse=True)[0] - start", "return (list(values))[0] - start"),
    (
        "return sorted(values, reverse=True)[0] - start",
        "return (sorted(values, reverse=True)[0] + start)",
    ),
    (
        "return sorted(values, reverse=True)[0] - start",
        "return sorted(values, reverse=True)[(1)] - start",
    ),
    (
        "return sorted(values, reverse=True)[0] - start",
        "return sorted(values, reverse=False)[0] - start",
    ),
}


def test_faults_are_of_what_runs_and_not_of_texts_types_messages_and_measured_limits(tmp_path):
    (tmp_path / "least.py").write_text(SOURCE)
    found = {(f.before, f.after) for f in faults_in(tmp_path, "least.py")}
    head = 'def least(values: "list[1]", start: int = '
    wanted = WANTED | {(f"{head}7) -> int:", f"{head}({n})) -> int:") for n in (6, 8)}
    assert found == wanted


def test_every_fault_is_a_program_that_differs_in_its_place_alone():
    path = "graphc/plans/check/check_places.py"
    source = (ROOT / path).read_bytes()
    faults = faults_in(ROOT, path)
    assert len(faults) > 100
    original = ast.dump(ast.parse(source))
    for fault in faults[::4]:
        changed = fault.applied(source)
        assert ast.dump(ast.parse(changed)) != original
        assert changed.splitlines()[: fault.line - 1] == source.splitlines()[: fault.line - 1]


def test_functions_tell_that_they_are_called(monkeypatch):
    source = (
        b"def f():\n    def g(): return 1\n    return g()\n\nclass C:\n    def f(self): return f()"
    )
    called, names = set(), {}
    monkeypatch.setattr("builtins.called_functions", called, raising=False)
    exec(telling(source, "a/m.py"), names)
    assert called == set()
    assert names["C"]().f() == 1
    assert called == {"m.f", "m.f.g", "m.C.f"}


def test_tests_that_call_the_function_are_run_the_quickest_first():
    tests = [
        {"id": "other", "seconds": 0.1, "calls": ["m.g"]},
        {"id": "slow", "seconds": 3.0, "calls": ["m.C.f"]},
        {"id": "quick", "seconds": 1.0, "calls": ["m.C.f", "m.g"]},
    ]
    assert choice_for("m.C.f", tests, 9) == ["quick", "slow"]
    assert choice_for("m.C.f", tests, 2) == ["quick"]
    assert choice_for("m.C", tests, 9) == ["quick", "slow"]
    assert choice_for("m.never_called", tests, 9) == ["other", "quick", "slow"]


def test_every_reason_is_of_a_fault_that_can_still_be_put_in():
    entries = tomllib.loads((ROOT / "tests/mutants/survivors.toml").read_text())["fault"]
    paths = {entry["path"] for entry in entries}
    there = {(f.path, f.before, f.after) for path in paths for f in faults_in(ROOT, path)}
    for entry in entries:
        assert (entry["path"], entry["before"], entry["after"]) in there, entry
        assert len(entry["why"]) > 10


def test_every_group_has_modules_and_tests():
    for group in GROUPS.values():
        assert all(list(ROOT.glob(pattern)) for pattern in group.modules)
        assert all((ROOT / test).exists() for test in group.tests)


@pytest.mark.parametrize(
    ("found", "known", "counted", "wrong"),
    [
        ("noticed", False, "noticed", 0),
        ("timed out", False, "timed out", 0),
        ("unseen", False, "survivors", 1),
        ("unseen", True, "explained", 0),
        ("timed out", True, "explained", 0),
        ("noticed", True, "noticed", 1),
    ],
)
def test_only_what_is_noticed_belies_a_reason(found, known, counted, wrong):
    fault = faults_in(ROOT, "graphc/plans/check/check_places.py")[0]
    run = Run("checker", None, None)
    run.known = {key(fault): Reason("it is harmless")} if known else {}
    run.judge(fault, found)
    assert run.counts == {counted: 1}
    assert len(run.wrong) == wrong
