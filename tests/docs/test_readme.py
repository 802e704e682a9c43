"""The README and the pages that continue it show what graphc prints."""

import json
import re
import sys
from pathlib import Path

import pytest
from docs.snippets import output_of, snippets

import graphc
from graphc.cli import main
from graphc.ir.builder import trace
from graphc.memory import inplace
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


def figures(pattern, text):
    """Return the figures next to the words of a pattern, which a text has once."""
    (found,) = re.findall(pattern, " ".join(text.split()))
    return found


def test_python_block_prints_what_is_shown():
    blocks = snippets(ROOT / "README.md")
    at = next(at for at, block in enumerate(blocks) if block.language == "python")
    assert output_of(blocks[at], {}) == blocks[at + 1].text


FITS = re.compile(r"\$ graphc (plan .*)\n(.*)\n\.\.\.\n(.*)\n")
COMPARED = re.compile(r"\$ graphc (compare .*)\n(fits .*?)```", re.DOTALL)
FEATURE_MAPS = re.compile(r"`(\w+)` (?:take )?([\d,]+) instead of ([\d,]+) MiB")


def test_what_slow_tests_compare_is_in_the_pages():
    _, first, last = FITS.search(README).groups()
    assert re.match(r"needs [\d.]+ GiB, [\d.]+ GiB more than", first)
    assert last.startswith("To fit: --budget ")
    ((_, shown),) = COMPARED.findall(CONCEPTS)
    rows = [line.split() for line in shown.splitlines()[3:]]
    assert len({len(row) for row in rows}) == 1
    assert {name for name, _, _ in FEATURE_MAPS.findall(TRAINING)} == {"resnet", "vit"}


@pytest.mark.slow
def test_whether_it_fits_is_what_plan_prints(capsys):
    command, first, last = FITS.search(README).groups()
    assert main(command.split()) == 3
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == first
    assert last in lines


TIME = "milliseconds"


def result(name):
    return json.loads((ROOT / "benchmarks" / "results" / name).read_text())


def test_gpu_figures_are_those_of_the_result_files():
    timed = result("gpu_day_h200.json")
    passed = sum(part["passed"] for part in timed["by_part"].values())
    assert not any(part["failures"] for part in timed["by_part"].values())
    assert figures(r"(\d+) GPU tests", README) == str(passed)
    step = timed["steps"]["gpt2"]["default"]["milliseconds"]
    eager, compiled = (
        f"{step / timed['peers'][f'gpt2-{how}']['milliseconds']:.2f}"
        for how in ("eager", "compile")
    )
    assert figures(r"([\d.]+) of torch eager's", README) == eager
    assert figures(r"([\d.]+) of `torch.compile`'s \(commit (\w+)\)", README) == (
        compiled, timed["commit"][:7]
    )  # fmt: skip
    less = timed["steps"]["gpt2"]["4 GiB by recomputation"]
    assert less["arena_bytes"] <= 4 * 2**30
    whole = timed["steps"]["gpt2"]["default"]["arena_bytes"] / 2**30
    slower = less["milliseconds"] / timed["peers"]["gpt2-compile"]["milliseconds"]
    assert figures(r"4 GiB instead of ([\d.]+), the step takes ([\d.]+) of", README) == (
        f"{whole:.1f}", f"{slower:.2f}"
    )  # fmt: skip


def test_times_over_checkpointing_are_those_of_the_result_file():
    llama, gpt2 = (
        format(steps["bytes of checkpointing"][TIME] / steps["checkpointing"][TIME], ".2f")
        for steps in (
            result("gpu_day_h200_torch.json")["planned"]["llama-autocast"],
            result("gpu_day_h200.json")["planned"]["gpt2-autocast"],
        )
    )
    assert figures(r"checkpointing, .*? ([\d.]+) .*? Llama .*? ([\d.]+) for GPT-2", README) == (
        llama, gpt2
    )  # fmt: skip


@pytest.mark.parametrize("document", ["README.md", "docs/fit.md"])
def test_the_accuracy_of_fit_is_that_of_the_result_file(document):
    errors = result("fit_on_gpu.json")["summary"]["allocated"]
    pattern = r"peaks in (\d+) steps .*? ([\d.]+) % \(median\) and ([\d.]+) % \(worst\)"
    assert figures(pattern, (ROOT / document).read_text()) == (
        f"{errors['rows']}", f"{100 * errors['median']:.2f}", f"{100 * errors['worst']:.1f}"
    )  # fmt: skip


def test_the_error_without_a_gpu(capsys, monkeypatch):
    """Compare the error with docs/gpu.md, except for the part that CuPy writes."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    (shown,) = re.findall(r"\$ graphc train digits --device cuda\n(.*?)\n```", GPU)
    assert main(["train", "digits", "--device", "cuda"]) == 2
    cause = re.compile(r"\((No module|import of).*?\)")
    assert cause.sub("", capsys.readouterr().err.strip()) == cause.sub("", shown)


@pytest.mark.slow
def test_table_is_what_compare_prints(capsys):
    """All but this machine's memory and the seconds of planning."""
    ((command, shown),) = COMPARED.findall(CONCEPTS)
    main(command.split())
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
        trained = [s for s in trace({"loss": MODELS[name]()}).states if s.trainable]
        assert sum(s.type.elements for s in trained) == int(count.replace(",", "")), name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "half", "full"), FEATURE_MAPS.findall(TRAINING))
def test_feature_maps_in_sixteen_bits(name, half, full):
    for precision, mebibytes in (("fp32", full), ("bf16", half)):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), precision=precision)
        assert f"{plan.feature_map_bytes >> 20:,}" == mebibytes


@pytest.mark.slow
def test_the_budget_of_resnet_1001():
    plain = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD())
    found = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD(), budget="7GiB")
    needed = figures(r"ResNet-1001 .*? needs ([\d.]+) GiB without recomputation", RECOMPUTATION)
    assert needed == f"{plain.arena_bytes / 2**30:.2f}"
    extra, proven = found.recomputation.extra_time_fraction, found.certificate.extra_time_bound
    pattern = r"Within 7 GiB .*? ([\d.]+) % more time .*? less than ([\d.]+) %"
    assert figures(pattern, RECOMPUTATION) == (f"{100 * extra:.1f}", f"{100 * proven:.1f}")
    assert found.arena_bytes <= 7 * 2**30


@pytest.mark.slow
def test_what_orders_and_parts_save(monkeypatch):
    def arena(name, **options):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), **options)
        return f"{plan.arena_bytes / 2**20:,.0f}"

    saved = f"LSTM, 64 steps: {arena('lstm')} MiB instead of {arena('lstm', reorder=False)}"
    assert saved in ORDERING
    placed = arena("densenet121")
    monkeypatch.setattr("graphc.memory.allocate.choose_parts", lambda *_: inplace.NO_PARTS)
    assert f"DenseNet-121: {placed} MiB instead of {arena('densenet121')}" in ORDERING
