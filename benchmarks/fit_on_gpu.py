"""Peaks that `graphc fit` predicts without a GPU, against those that torch measured on one.

gpu_day/torch_parts.py measures training steps of the cases in gpu_day/fit_cases.py: bytes as
``torch.cuda.max_memory_allocated`` and ``max_memory_reserved`` count them. This predicts the same
cases. It needs the versions of torch and of model libraries of the measurement.

Run: python benchmarks/fit_on_gpu.py benchmarks/results/gpu_day_GPU.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import median
from typing import Any

from report import circumstances, output_argument, print_table, write_json

from graphc.devices.device import find_device
from graphc.torch.fit.allocator import replay
from graphc.torch.fit.step import predict

sys.path.append(str(Path(__file__).parent / "gpu_day"))
from fit_cases import CASES, FitCase

PACKAGES = ("graphc", "torch", "transformers", "torchvision", "timm", "peft")
Row = dict[str, Any]


def row_of(name: str, case: FitCase, measured: Row, device: str) -> Row:
    """Return measured and predicted bytes of a case; reserved ones where they were measured."""
    began = time.perf_counter()
    found = predict(case.request(find_device(device)))
    seconds = time.perf_counter() - began
    predicted = {
        "allocated": replay(found.trace).allocated_bytes,
        "reserved": found.needed_bytes,
    }
    row: Row = {"case": name, "prediction_seconds": seconds}
    for kind, size in predicted.items():
        real = measured[f"{kind}_bytes"]
        row[f"{kind}_bytes"] = real
        row[f"predicted_{kind}_bytes"] = size
        row[f"{kind}_error"] = None if real is None else size / real - 1
    return row


def summary(rows: list[Row]) -> Row:
    """Return the median and worst absolute errors."""
    found = {}
    for kind in ("allocated", "reserved"):
        errors = [abs(row[f"{kind}_error"]) for row in rows if row[f"{kind}_error"] is not None]
        found[kind] = {"median": median(errors), "worst": max(errors), "rows": len(errors)}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measurement", type=Path, help="result file of gpu_day/report.py")
    output_argument(parser, "fit_on_gpu.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    measured = json.loads(options.measurement.read_text())
    device = measured["gpu"].split()[1].lower()
    rows = [
        row_of(name, CASES[name], each, device)
        for name, each in measured["fit"].items()
        if "problem" not in each
    ]
    shown = ("case", "allocated_bytes", "allocated_error", "reserved_bytes", "reserved_error")
    print_table([{key: row[key] for key in shown} for row in rows])
    print(summary(rows))
    content = {
        **circumstances(PACKAGES), "gpu": measured["gpu"], "measured": options.measurement.name,
        "rows": rows, "summary": summary(rows),
    }  # fmt: skip
    write_json(options.output, content)


if __name__ == "__main__":
    main()
