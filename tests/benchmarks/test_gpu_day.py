"""The script for a machine with a GPU, rehearsed on an emulated one, sound and with faults."""

import importlib.util
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import documents
import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks" / "gpu_day"


def loaded(name):
    """A script of the folder as a module; `report` is also the name of a script beside it."""
    spec = importlib.util.spec_from_file_location(f"gpu_day_{name}", FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


report = loaded("report")


def day(tmp_path, fault="", parts="facts selftest tests memory"):
    """The content of the result file after a rehearsal with a fault."""
    out = tmp_path / "out"
    environment = {
        **os.environ, "OUT": str(out), "INJECT": fault, "PARTS": parts, "PY": sys.executable,
        "K": "op_equals_the_cpu and (relu or softmax)", "WORKERS": "2", "TEST_SECONDS": "8",
    }  # fmt: skip
    done = subprocess.run(
        ["bash", FOLDER / "run.sh", "--emulated"], env=environment, check=False,
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return report.content_of(report.files_of([out / "results.tgz"]), "2026-11-27")


@pytest.mark.slow
def test_every_part_runs(tmp_path):
    content = day(tmp_path, parts="facts selftest tests memory steps")
    assert report.problems(content) == []
    assert list(content["parts"]) == [
        "facts", "tests", "memory", "selftest", "steps-gpt2", "steps-gpt2-dropout",
        "steps-resnet50",
    ]  # fmt: skip
    assert content["tests"]["passed"] > 3
    assert content["selftest"]["passed"] > 60
    for variants in content["steps"].values():
        for figures in variants.values():
            assert figures["milliseconds"] > 0
            assert figures["launches"]
            assert figures["modelled_milliseconds_by_op"].keys() == (
                figures["milliseconds_by_op"].keys()
            )


@pytest.mark.slow
def test_a_broken_kernel_is_reported_and_the_rest_runs(tmp_path):
    content = day(tmp_path, "kernel")
    assert content["selftest"]["failures"]
    assert {f["subject"] for f in content["selftest"]["failures"]} >= {"float32 against float64"}
    assert content["parts"]["selftest"]["status"] == "1"
    assert content["parts"]["tests"]["status"] == "1"
    assert any("softmax" in name for name in content["tests"]["failures"])
    assert content["tests"]["passed"] > 0
    assert [content["parts"][name]["status"] for name in ("facts", "memory")] == ["0", "0"]


@pytest.mark.slow
def test_a_wrong_version_is_reported_and_the_rest_runs(tmp_path):
    content = day(tmp_path, "version", "facts selftest tests")
    assert {part["status"] for part in content["parts"].values()} == {"0"}
    problems = report.problems(content)
    assert problems
    for problem in problems:
        assert problem.startswith("library: ")
        assert "nvidia-cudnn-frontend must be 1.32 or later, got 1.10.0" in problem


@pytest.mark.slow
def test_a_hanging_test_is_reported_and_the_rest_runs(tmp_path):
    content = day(tmp_path, "hang", "facts tests memory")
    assert content["tests"]["failures"] == ["test_that_hangs"]
    assert content["tests"]["passed"] > 3
    assert content["parts"]["memory"]["status"] == "0"


def archive_of(path, files):
    with tarfile.open(path, "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


JUNIT = """<testsuites><testsuite>
<testcase name="test_op_equals_the_cpu[relu]"/>
<testcase name="test_op_equals_the_cpu[exp]"><failure message="wrong"/></testcase>
<testcase name="test_an_arena_is_one_allocation"><skipped/></testcase>
</testsuite></testsuites>"""


def test_a_report_counts_by_part_and_names_what_failed(tmp_path):
    first = archive_of(tmp_path / "a.tgz", {
        "tests.xml": JUNIT, "parts": "tests 1 20\n", "commit": "abcdef0\n",
        "facts.log": "Python 3.12.3\nnumpy==2.5.2\nnumpydoc==1.0\n",
        "steps-gpt2.json": json.dumps({"default": {"problem": "CudnnError: no"}}),
        "devices.json": "",
    })  # fmt: skip
    second = archive_of(tmp_path / "b.tgz", {
        "parts": "peer-gpt2-eager - 0\n", "peer-gpt2-eager.json": '{"milliseconds": 4.0}',
    })  # fmt: skip
    content = report.content_of(report.files_of([first, second]), "2026-11-27")
    ops = content["by_part"]["every op, its gradient and updates, on a poisoned arena"]
    assert (ops["passed"], ops["failures"]) == (1, ["test_op_equals_the_cpu[exp]"])
    assert content["by_part"]["the driver's bytes"]["skipped"] == 1
    assert (content["python"], content["commit"]) == ("3.12.3", "abcdef0")
    assert content["versions"].keys() == {"graphc", "numpy"}
    assert content["peers"] == {"gpt2-eager": {"milliseconds": 4.0}}
    assert content["gpu"] == "no GPU"
    assert documents.gpu_steps(content).splitlines()[-1] == (
        "| gpt2, default | CudnnError: no | - | - | - | - |"
    )
    assert report.problems(content) == [
        "part tests: exit status 1", "part peer-gpt2-eager: exit status -",
        "file devices.json is not complete",
        "test: test_op_equals_the_cpu[exp]", "steps: gpt2 default: CudnnError: no",
    ]  # fmt: skip


def test_every_gpu_test_belongs_to_a_part():
    """So docs/gpu-status.md counts all of tests/on_gpu."""
    import re

    names = [
        name
        for path in (ROOT / "tests" / "on_gpu").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)
    ]
    counted = [n for n in names if any(re.search(p, n) for p in report.STATUS.values())]
    assert counted == names


def test_nothing_is_fetched_on_the_machine_with_the_gpu():
    text = (FOLDER / "run.sh").read_text()
    installs = [line for line in text.splitlines() if "pip install" in line]
    assert installs
    assert all("--no-index" in line for line in installs)
    assert "XLA_PYTHON_CLIENT_PREALLOCATE=false" in text
    assert "--deselect tests/on_gpu/test_memory.py" in text.replace("\\\n ", "")
