"""Predictions of `graphc fit` against bytes that torch measured on a GPU, for real models."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

for library in ("transformers", "torchvision", "timm", "peft"):
    pytest.importorskip(library, reason=f"{library} is not installed")
pytestmark = [pytest.mark.peers, pytest.mark.slow]

from graphc.ir.device import find_device  # noqa: E402
from graphc.torch.fit.allocator import replay  # noqa: E402
from graphc.torch.fit.step import predict  # noqa: E402

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
MEASURED = json.loads((BENCHMARKS / "results" / "gpu_day_h200_torch.json").read_text())["fit"]
WITHOUT_CONVOLUTIONS = ("gpt2", "llama", "qwen2", "bert", "t5")
WORKSPACES = 120 * 2**20
"""Bytes of cuDNN's workspaces, which are not predicted: the most in a measured step is 115 MiB."""


@pytest.fixture(scope="module")
def cases():
    spec = importlib.util.spec_from_file_location(
        "fit_cases", BENCHMARKS / "gpu_day" / "fit_cases.py"
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["fit_cases"] = module
    spec.loader.exec_module(module)
    return module.CASES


@pytest.mark.parametrize("name", MEASURED)
@pytest.mark.filterwarnings("ignore")
def test_peaks_are_those_of_the_gpu(name, cases):
    measured = MEASURED[name]
    found = predict(cases[name].request(find_device("h200")))
    slack = 0 if name.startswith(WITHOUT_CONVOLUTIONS) else WORKSPACES
    allocated = measured["allocated_bytes"]
    assert replay(found.trace).allocated_bytes == pytest.approx(allocated, rel=3e-3, abs=slack)
    if measured["reserved_bytes"] is not None:
        assert found.needed_bytes == pytest.approx(measured["reserved_bytes"], rel=3e-3)
