"""Plugins of pytest: one records what each test calls, one runs a choice of tests by that."""

from __future__ import annotations

import ast
import builtins
import json
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest

TELL = "getattr(__import__('builtins'), 'called_functions', set()).add({!r})"
"""What a function does first, so that it is known to be called; in other processes, nothing."""


def telling(source: bytes, path: str) -> str:
    """A file in which every function tells that it is called."""
    tree = ast.parse(source)
    left: list[tuple[ast.AST, str]] = [(tree, Path(path).stem)]
    while left:
        node, name = left.pop()
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            name = f"{name}.{node.name}"
        left += [(child, name) for child in ast.iter_child_nodes(node)]
        if isinstance(node, ast.FunctionDef):
            node.body.insert(0, ast.parse(TELL.format(name)).body[0])
    return ast.unparse(tree)


class Recorder:
    """Writes down the functions that every test calls, where they tell it, and its seconds.

    What a fixture calls counts for all tests that use it, though it may be made once for many.
    """

    def __init__(self, report: Path) -> None:
        self.report = report
        self.fixtures: defaultdict[str, set[str]] = defaultdict(set)
        self.tests: list[dict[str, Any]] = []
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)

    @contextmanager
    def recorded(self) -> Iterator[set[str]]:
        """The functions called in here."""
        outer = getattr(builtins, "called_functions", set())
        called: set[str] = set()
        builtins.called_functions = called  # type: ignore[attr-defined]
        try:
            yield called
        finally:
            builtins.called_functions = outer  # type: ignore[attr-defined]

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Any:
        with self.recorded() as called:
            result = yield
        self.fixtures[fixturedef.argname] |= called
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Any:
        with self.recorded() as called:
            result = yield
        self.in_call = called
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.in_call: set[str] = set()
        start = time.perf_counter()
        result = yield
        seconds = time.perf_counter() - start
        names = getattr(item, "fixturenames", ())
        calls = sorted(self.in_call.union(*(self.fixtures[name] for name in names)))
        fails = item.nodeid in self.failed
        found = {"id": item.nodeid, "seconds": seconds, "calls": calls, "fails": fails}
        self.tests.append(found)
        return result

    def pytest_sessionfinish(self) -> None:
        self.report.write_text(json.dumps(self.tests))


class Chosen:
    """Runs the given tests in the given order, and shrinks no example."""

    def __init__(self, tests: list[str]) -> None:
        self.place = {test: number for number, test in enumerate(tests)}

    def pytest_collection(self) -> None:
        phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
        profile = hypothesis.settings.get_profile("graphc")
        hypothesis.settings.register_profile("mutants", profile, phases=phases)
        hypothesis.settings.load_profile("mutants")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self.place]
        items[:] = sorted(chosen, key=lambda item: self.place[item.nodeid])


def choice_for(function: str, tests: list[dict[str, Any]], seconds: float) -> list[str]:
    """The tests that call a function, the quickest first, for so many seconds.

    Code outside functions runs when it is imported: then those that call anything of its module.
    """
    called = {name for test in tests for name in test["calls"]}

    def inside(name: str) -> bool:
        return name == function or name.startswith(f"{function}.")

    while "." in function and not any(map(inside, called)):
        function = function.rpartition(".")[0]
    calling = [test for test in tests if any(map(inside, test["calls"]))]
    chosen, spent = [], 0.0
    for test in sorted(calling or tests, key=lambda test: test["seconds"]):
        spent += test["seconds"]
        if chosen and spent > seconds:
            break
        chosen.append(test["id"])
    return chosen
