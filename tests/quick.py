"""`make quick`: tests near the changed files, the nearest first, for a limited time.

A test file is at distance 1 from a module that it imports, also through a public name of `graphc`,
and one further for each import in between; tests up to `FAR` run. At equal distance, tests in the
mirrored folder come first, then those with fewer imports. A changed file that nobody imports, such
as a template or conftest.py, selects the tests of its folder. Changes are those since $SINCE.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FAR = 2
SECONDS = 30
END = pytest.StashKey[float]()
PLANS = "tests/plans/test_fingerprints.py"
MARKS = "not slow and not peers and not gpu and not browser and not perfetto"


def module_of(path: Path) -> str:
    """Return the name by which tests import a file."""
    parts = path.with_suffix("").parts
    parts = parts if parts[0] == "graphc" else parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(tree: ast.Module, face: dict[str, str]) -> set[str]:
    """Return the names of modules and of their members that a file imports."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                found |= {each.name for each in names}
            case ast.ImportFrom(module=str(module), names=names):
                found |= {module} | {f"{module}.{each.name}" for each in names}
            case ast.Attribute(value=ast.Name(id="g" | "graphc"), attr=name) if name in face:
                found.add(face[name])
    return found - {"graphc"}


def nearest(changed: list[Path]) -> list[str]:
    """Return the test files near these files, the nearest first."""
    folders = ("graphc", "tests", "benchmarks")
    paths = [p.relative_to(ROOT) for each in folders for p in (ROOT / each).rglob("*.py")]
    trees = {path: ast.parse((ROOT / path).read_text()) for path in paths}
    known = {module_of(path): path for path in paths}
    public = [n for n in trees[Path("graphc/__init__.py")].body if isinstance(n, ast.ImportFrom)]
    face = {x.asname or x.name: str(n.module) for n in public for x in n.names}
    face |= {name: f"graphc.{name}" for name, module in face.items() if module == "graphc"}
    importers: defaultdict[Path, set[Path]] = defaultdict(set)
    counts: dict[Path, int] = {}
    for path, tree in trees.items():
        imported = {known[name] for name in imports_of(tree, face) if name in known} - {path}
        counts[path] = len(imported)
        for other in imported:
            importers[other].add(path)
    distance = {path: 0 for path in changed if path in trees}
    for path in (queue := list(distance)):
        for importer in importers[path] - distance.keys():
            distance[importer] = distance[path] + 1
            queue.append(importer)
    mirrored = {part for path in changed for part in path.parts[:2]}
    alone = [path for path in changed if not importers[path] and path.name[:5] != "test_"]
    for path in {*trees} - distance.keys():
        if any(path.parts[1] in each.parts[:2] for each in alone):
            distance[path] = 1
    tests = [p for p, d in distance.items() if p.name.startswith("test_") and d <= FAR]
    tests.sort(key=lambda p: (distance[p], p.parts[1] not in mirrored, counts[p], p))
    plans = [PLANS] if {"graphc", "golden"} & {part for p in changed for part in p.parts} else []
    return list(dict.fromkeys([*plans, *map(str, tests)]))


def pytest_collection_finish(session: pytest.Session) -> None:
    session.stash[END] = time.monotonic() + SECONDS


def pytest_runtest_setup(item: pytest.Item) -> None:
    if time.monotonic() > item.session.stash[END]:
        pytest.skip(f"the {SECONDS} seconds of `make quick` are over")


if __name__ == "__main__":
    since = os.environ.get("SINCE") or "HEAD"
    lines = ""
    for command in (["diff", "--name-only", since], ["ls-files", "-o", "--exclude-standard"]):
        lines += subprocess.check_output(["git", "-C", str(ROOT), *command], text=True)
    files = nearest([Path(line) for line in lines.splitlines()])
    print(f"{len(files)} test files near the change: {' '.join(files[:8])}", flush=True)
    if files:
        options = ["-n", "auto", "--maxschedchunk", "2", "-p", "quick", "-m", MARKS]
        sys.exit(pytest.main([*options, *files]))
