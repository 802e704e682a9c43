"""A copy of the checkout, and processes that run its tests with a fault in one of its files."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mutants.faults import Fault
from mutants.groups import Group
from mutants.recording import Chosen, Recorder, telling

LOADED = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
MARKS = "not slow and not peers and not gpu and not browser and not perfetto"
OPTIONS = ("-q", "--tb=short", "-p", "no:cacheprovider", "-W", LOADED)
LEFT_OUT = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "*.pyc")
MOST_BYTES = 16 * 2**30
"""Of memory, for a fault that never stops to allocate."""


class Scratch:
    """A copy of the checkout, in which one fault at a time is put into the package."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder / "checkout"
        self.report = folder / "calls.json"
        self.output = folder / "output.txt"
        shutil.copytree(root, self.folder, ignore=LEFT_OUT)

    @contextmanager
    def changed(self, texts: Mapping[str, bytes]) -> Iterator[None]:
        """Files of the copy have other texts in here."""
        old = {path: (self.folder / path).read_bytes() for path in texts}
        try:
            for path, text in texts.items():
                (self.folder / path).write_bytes(text)
            yield
        finally:
            for path, text in old.items():
                (self.folder / path).write_bytes(text)

    def record(self, group: Group, paths: list[str]) -> list[dict[str, Any]]:
        """What each test of a group calls in its modules, and whether it fails without a fault."""
        sources = {path: (self.folder / path).read_bytes() for path in paths}
        texts = {path: telling(source, path).encode() for path, source in sources.items()}
        with self.changed(texts):
            status = self.run([*group.tests], Recorder(self.report), group.compiled, None)
        if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            raise SystemExit(f"the tests do not run:\n{self.output.read_text()}")
        return json.loads(self.report.read_text())

    def notices(self, fault: Fault, tests: list[str], compiled: bool, seconds: float) -> str:
        """Whether the tests notice a fault: "noticed", "timed out" or "unseen"."""
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        source = (self.folder / fault.path).read_bytes()
        with self.changed({fault.path: fault.applied(source)}):
            status = self.run(list(files), Chosen(tests), compiled, seconds)
        if status is None:
            return "timed out"
        if status == pytest.ExitCode.NO_TESTS_COLLECTED:
            raise SystemExit(f"{fault}: no test was run:\n{self.output.read_text()}")
        return "unseen" if status == pytest.ExitCode.OK else "noticed"

    def run(self, files: list[str], plugin: object, compiled: bool, seconds: float | None) -> Any:
        """The status of pytest on some files in a forked process, None if it took too long."""
        sys.stdout.flush()
        process = os.fork()
        if process == 0:
            status = int(pytest.ExitCode.INTERNAL_ERROR)
            try:
                status = self.in_process(files, plugin, compiled)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        start = time.monotonic()
        while True:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            if seconds is not None and time.monotonic() > start + seconds:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
                return None
            time.sleep(0.02)

    def in_process(self, files: list[str], plugin: object, compiled: bool) -> int:
        """Run pytest here; never to be called but in a process that ends after it."""
        os.setsid()
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
        sys.dont_write_bytecode = True
        os.chdir(self.folder)
        os.environ["PYTHONPATH"] = str(self.folder)
        ours = {str(self.root), str(self.root / "tests"), ""}
        sys.path[:] = [str(self.folder), *(path for path in sys.path if path not in ours)]
        if not compiled:
            sys.modules["numba"] = None  # type: ignore[assignment]
        stop = ["-x"] if isinstance(plugin, Chosen) else []
        arguments = [*OPTIONS, *stop, "-m", MARKS, *files]
        return int(pytest.main(arguments, plugins=[plugin]))
