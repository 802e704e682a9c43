"""What the README shows is what graphc prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice

import graphc
from graphc.allocation import inplace
from graphc.cli import main
from graphc.models import MODELS
from graphc.runtime import bind as binding
from graphc.runtime.gpu.device import Gpu

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def python_blocks():
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_python_block_runs(tmp_path):
    block, _, options = python_blocks()
    assert options.startswith("graphc.compile(")
    block += options.replace("loss,", "graphc.mean(graphc.linear(x, 3, name='options')),")
    done = subprocess.run(
        [sys.executable, "-c", block], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "peak at node" in done.stdout
    assert (tmp_path / "run.safetensors").exists()


def test_gpu_block_runs_on_an_emulated_gpu(tmp_path, monkeypatch, capsys):
    block, on_gpu, _ = python_blocks()
    assert len(on_gpu.splitlines()) == 5
    monkeypatch.chdir(tmp_path)
    found = Gpu(0, "an emulated H200", 90, 2**37, 2**37, 67e12, 4800e9)
    monkeypatch.setattr(binding, "find_gpu", lambda number: found)
    monkeypatch.setattr(binding, "CudaDevice", lambda *given: EmulatedDevice())
    names = {}
    exec(block.replace("range(50)", "range(2)"), names)
    names["batches"] = [{"x": names["xs"], "t": names["ts"]}] * 3
    capsys.readouterr()
    exec(on_gpu, names)
    printed = capsys.readouterr().out
    assert str(names["program"].plan) in printed
    assert "H200" in printed.upper()
    losses = printed.removeprefix(str(names["program"].plan)).split()
    assert len(losses) == 3
    assert float(losses[2]) < float(losses[0])
    assert (tmp_path / "run.safetensors").exists()


def test_the_error_without_a_gpu(capsys, monkeypatch):
    """As the README shows it, but for what CuPy itself says."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    (shown,) = re.findall(r"\$ graphc train digits --device cuda\n(.*?)\n```", README)
    assert main(["train", "digits", "--device", "cuda"]) == 2
    cause = re.compile(r"\((No module|import of).*?\)")
    assert cause.sub("", capsys.readouterr().err.strip()) == cause.sub("", shown)


def test_table_is_what_compare_prints(capsys):
    """All but this machine's memory and the seconds of planning."""
    main(["compare", "mlp", "layers=50", "hidden=1024", "batch=512"])
    (shown,) = re.findall(r"batch=512\n(fits .*?)```", README, re.DOTALL)
    shown, printed = (
        [line.split() for line in text.splitlines()] for text in (shown, capsys.readouterr().out)
    )
    assert shown[0][:10] == printed[0][:10]
    assert shown[1:3] == printed[1:3]
    assert [line[:-1] for line in shown[3:]] == [line[:-1] for line in printed[3:]]


def test_parameter_counts_are_those_of_the_networks():
    listed = re.findall(r"^\| `(\w+)` \|.*\| ([\d,]+)", README, re.MULTILINE)
    assert [name for name, _ in listed] != []
    assert {name for name, _ in listed} == set(MODELS)
    for name, count in listed:
        trained = [s for s in graphc.plan(MODELS[name]()).graph.states if s.trainable]
        assert sum(s.type.elements for s in trained) == int(count.replace(",", "")), name


@pytest.mark.parametrize(("name", "half", "full"), [("resnet", 1694, 3364), ("vit", 2138, 4248)])
def test_feature_maps_in_sixteen_bits(name, half, full):
    assert (
        f"{half:,} MiB instead of {full:,}" in README or f"{half:,} instead of {full:,}" in README
    )
    for precision, mebibytes in (("fp32", full), ("bf16", half)):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), precision=precision)
        assert plan.feature_map_bytes >> 20 == mebibytes


@pytest.mark.slow
def test_the_budget_of_resnet_1001():
    plain = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD())
    found = graphc.plan(MODELS["resnet"](depth=1001), optimizer=graphc.optim.SGD(), budget="7GiB")
    text = " ".join(README.split())
    assert f"needs {plain.arena_bytes / 2**30:.2f} GiB without recomputation" in text
    extra, proven = found.recomputation.extra_time_fraction, found.certificate.extra_time_bound
    assert f"Within 7 GiB it takes {100 * extra:.1f} % more time" in text
    assert f"adds less than {100 * proven:.1f} %" in text
    assert found.arena_bytes <= 7 * 2**30


@pytest.mark.slow
def test_savings_by_orders_and_parts_are_those_printed(monkeypatch):
    def arena(name, **options):
        plan = graphc.plan(MODELS[name](), optimizer=graphc.optim.SGD(), **options)
        return f"{plan.arena_bytes / 2**20:,.0f}"

    assert (
        f"LSTM, 64 steps: {arena('lstm')} MiB instead of {arena('lstm', reorder=False)}" in README
    )
    placed = arena("densenet121")
    monkeypatch.setattr("graphc.allocation.allocate.choose_parts", lambda *_: inplace.NO_PARTS)
    assert f"DenseNet-121: {placed} MiB instead of {arena('densenet121')}" in README
