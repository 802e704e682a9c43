"""The README and the pages that continue it show what graphc prints."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphc
from graphc.allocation import inplace
from graphc.cli import main
from graphc.models import MODELS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
CONCEPTS, GPU, NETWORKS, ORDERING, RECOMPUTATION, TRAINING = (
    (ROOT / "docs" / name).read_text()
    for name in (
        "concepts.md",
        "gpu.md",
        "networks.md",
        "internals/ordering.md",
        "recomputation.md",
        "training.md",
    )
)


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


def test_python_block_prints_what_is_shown():
    block, shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", README, re.DOTALL)[0]
    assert len(block.splitlines()) == 12
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, shown), done.stderr


@pytest.mark.slow
def test_whether_it_fits_is_what_plan_prints(capsys):
    command, first, last = re.search(r"\$ graphc (plan .*)\n(.*)\n\.\.\.\n(.*)\n", README).groups()
    assert main(command.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == first
    assert last in lines


TIME = "milliseconds"


def result(name):
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def test_gpu_figures_are_those_of_the_result_files():
    text = " ".join(README.split())
    timed = result("gpu_day_h200_steps.json")
    passed = sum(part["passed"] for part in timed["by_part"].values())
    assert not any(part["failures"] for part in timed["by_part"].values())
    assert f"All {passed} GPU tests passed on an NVIDIA H200" in text
    step = timed["steps"]["gpt2"]["default"]["milliseconds"]
    eager, compiled = (
        f"{step / timed['peers'][f'gpt2-{how}']['milliseconds']:.2f}"
        for how in ("eager", "compile")
    )
    assert (
        f"takes {eager} of torch eager's time and {compiled} of `torch.compile`'s "
        f"(commit {timed['commit'][:7]})" in text
    )


def test_times_over_checkpointing_are_those_of_the_result_file():
    planned = result("gpu_day_h200_torch.json")["planned"]
    llama, gpt2 = (
        format(steps["bytes of checkpointing"][TIME] / steps["checkpointing"][TIME], ".2f")
        for steps in (planned["llama-autocast"], planned["gpt2-autocast"])
    )
    text = " ".join(README.split())
    assert f"take {llama} of its time for a Llama of 16 layers, and {gpt2} for GPT-2" in text


@pytest.mark.parametrize("document", ["README.md", "docs/fit.md"])
def test_the_accuracy_of_fit_is_that_of_the_result_file(document):
    errors = result("fit_on_gpu.json")["summary"]["allocated"]
    text = " ".join((ROOT / document).read_text().split())
    assert (
        f"in {errors['rows']} steps differ from the predicted ones by {100 * errors['median']:.2f} "
        f"% (median) and {100 * errors['worst']:.1f} % (worst)" in text
    )


def test_the_error_without_a_gpu(capsys, monkeypatch):
    """Compare the error with docs/gpu.md, except for the part that CuPy writes."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    (shown,) = re.findall(r"\$ graphc train digits --device cuda\n(.*?)\n```", GPU)
    assert main(["train", "digits", "--device", "cuda"]) == 2
    cause = re.compile(r"\((No module|import of).*?\)")
    assert cause.sub("", capsys.readouterr().err.strip()) == cause.sub("", shown)


def test_table_is_what_compare_prints(capsys):
    """All but this machine's memory and the seconds of planning."""
    main(["compare", "mlp", "layers=50", "hidden=1024", "batch=512"])
    (shown,) = re.findall(r"batch=512\n(fits .*?)```", CONCEPTS, re.DOTALL)
    shown, printed = (
        [line.split() for line in text.splitlines()] for text in (shown, capsys.readouterr().out)
    )
    assert shown[0][:10] == printed[0][:10]
    assert shown[1:3] == printed[1:3]
    assert [line[:-1] for line in shown[3:]] == [line[:-1] for line in printed[3:]]


def test_parameter_counts_are_those_of_the_networks():
    listed = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+)", NETWORKS, re.MULTILINE)
    assert [name for name, _ in listed] != []
    assert {name for name, _ in listed} == set(MODELS)
    for name, count in listed:
        trained = [s for s in graphc.plan(MODELS[name]()).graph.states if s.trainable]
        assert sum(s.type.elements for s in trained) == int(count.replace(",", "")), name


@pytest.mark.parametrize(("name", "half", "full"), [("resnet", 1694, 3364), ("vit", 1800, 3569)])
def test_feature_maps_in_sixteen_bits(name, half, full):
    assert f"{half:,} instead of {full:,} MiB" in TRAINING
    for precision, mebibytes in (("fp32", full), ("bf16", half)):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), precision=precision)
        assert plan.feature_map_bytes >> 20 == mebibytes


@pytest.mark.slow
def test_the_budget_of_resnet_1001():
    plain = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD())
    found = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD(), budget="7GiB")
    text = " ".join(RECOMPUTATION.split())
    assert f"needs {plain.arena_bytes / 2**30:.2f} GiB without recomputation" in text
    extra, proven = found.recomputation.extra_time_fraction, found.certificate.extra_time_bound
    assert f"Within 7 GiB it takes {100 * extra:.1f} % more time" in text
    assert f"adds less than {100 * proven:.1f} %" in text
    assert found.arena_bytes <= 7 * 2**30


@pytest.mark.slow
def test_what_orders_and_parts_save(monkeypatch):
    def arena(name, **options):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), **options)
        return f"{plan.arena_bytes / 2**20:,.0f}"

    saved = f"LSTM, 64 steps: {arena('lstm')} MiB instead of {arena('lstm', reorder=False)}"
    assert saved in ORDERING
    placed = arena("densenet121")
    monkeypatch.setattr("graphc.allocation.allocate.choose_parts", lambda *_: inplace.NO_PARTS)
    assert f"DenseNet-121: {placed} MiB instead of {arena('densenet121')}" in ORDERING
