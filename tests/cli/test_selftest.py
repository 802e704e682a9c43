"""graphc selftest: what passes, what fails, and the report."""

import json
import sys

import pytest
from cli.running import run
from runtime.emulated_gpu import fake_cudnn
from runtime.emulated_gpu.emulated import emulate

from graphc import selftest


@pytest.fixture
def few(monkeypatch):
    """One network and two strategies."""
    monkeypatch.setattr(selftest, "NETWORKS", {"mlp": selftest.NETWORKS["mlp"]})
    monkeypatch.setattr(selftest, "STRATEGIES", ({"allocate": "none"}, {"poison": True}))


def test_a_sound_installation_passes(capsys, few, tmp_path):
    path = tmp_path / "report.json"
    code, printed, _ = run(capsys, "selftest", "--output", str(path))
    report = json.loads(path.read_text())
    assert (code, report["failed"]) == (0, 0)
    assert [check["subject"] for check in report["checks"]] == [
        "float32 against float64", "allocate=none", "poison=True",
    ]  # fmt: skip
    assert report["machine"]["cpu"]["name"]
    assert f"3 checks passed, 0 failed; report: {path}" in printed


def test_wrong_numbers_fail_with_1(capsys, few, tmp_path, monkeypatch):
    """A kernel that is a tenth off fails against float64, and no comparison of bits."""
    own = selftest._trained

    def wrong(loss, device, **options):
        found = own(loss, device, **options)
        if options.get("kernels") != "numpy":
            found.changes["layer0/weight"][...] *= 1.1
        return found

    monkeypatch.setattr(selftest, "_trained", wrong)
    path = tmp_path / "report.json"
    code, printed, _ = run(capsys, "selftest", "--output", str(path))
    assert code == 1
    assert [check["passed"] for check in json.loads(path.read_text())["checks"]] == [
        False, True, True,
    ]  # fmt: skip
    assert "FAILED  mlp" in printed
    assert "layer0/weight" in printed


def test_a_gradient_that_is_missing_fails(few, monkeypatch):
    """Also of an array that changes little beside its numbers, such as the scale of a norm."""
    monkeypatch.setattr(selftest, "NETWORKS", {"gpt2": gpt2_alone()})
    own = selftest._trained

    def without(loss, device, **options):
        found = own(loss, device, **options)
        if options.get("kernels") != "numpy":
            found.changes["layer0/norm1/scale"][...] = 0.0
        return found

    assert next(selftest.checks("cpu")).passed
    monkeypatch.setattr(selftest, "_trained", without)
    first = next(selftest.checks("cpu"))
    assert not first.passed
    assert "layer0/norm1/scale" in first.found


def gpt2_alone(network=selftest.NETWORKS["gpt2"]):
    return network


def test_other_bits_fail(few, monkeypatch):
    own = selftest._trained

    def other(loss, device, **options):
        found = own(loss, device, **options)
        if "allocate" in options:
            bias = found.arrays["layer0/bias"]
            bias[...] = bias * (1 + 2e-7) + 1e-9
        return found

    monkeypatch.setattr(selftest, "_trained", other)
    found = {check.subject: check for check in selftest.checks("cpu")}
    assert [found[s].passed for s in ("allocate=none", "poison=True")] == [False, True]
    assert "first layer0/bias" in found["allocate=none"].found


def test_an_error_is_a_failed_check(few, monkeypatch):
    own = selftest._trained

    def raising(loss, device, **options):
        if "poison" in options:
            raise RuntimeError("cudaErrorIllegalAddress")
        return own(loss, device, **options)

    monkeypatch.setattr(selftest, "_trained", raising)
    *_, last = selftest.checks("cpu")
    assert (last.passed, last.found) == (False, "RuntimeError: cudaErrorIllegalAddress")


def test_a_gpu_is_checked(few, monkeypatch):
    emulate(monkeypatch)
    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn)
    found = list(selftest.checks("cuda"))
    assert all(check.passed for check in found), found
    assert {check.subject for check in found} >= {
        "own kernels against float64", "bf16 against float64", "driver memory", "libraries",
        "cuda_graph=False", "streams=3",
    }  # fmt: skip


def test_a_broken_kernel_of_a_gpu_fails(few, monkeypatch):
    emulate(monkeypatch, lambda text: text.replace("expf(", "logf("))
    monkeypatch.setitem(sys.modules, "cudnn", fake_cudnn)
    first = next(selftest.checks("cuda"))
    assert (first.subject, first.passed) == ("float32 against float64", False)


def test_without_a_gpu_it_says_so(capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    code, _, complaint = run(
        capsys, "selftest", "--device", "cuda", "--output", str(tmp_path / "r.json")
    )
    assert code == 2
    assert "CuPy cannot be imported" in complaint
    assert not (tmp_path / "r.json").exists()
