"""Published peaks of training on GPUs, beside predictions from configurations alone.

published_peaks.json has the tables, each with its source and a quoted line. Nothing is fitted to
them. A prediction is the peak of `graphc.torch.fit.eager` after the allocator's rounding, with the
workspaces of cuBLAS. No weights and no GPU are used. Models of transformers compute other tensors
in later versions, so each table is predicted with a version of its time: a run takes the tables of
the version that is installed, and keeps the rows of others in the result file.

The scripts of the tables without an optimizer differ from a usual step: a loop keeps the outputs
of a step until those of the next step replace them, and sums logits instead of computing a loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from report import circumstances, output_argument, print_table, write_json
from torch import nn
from torch.overrides import TorchFunctionMode

from graphc.devices.device import find_device
from graphc.torch.fit.allocator import AllocatorPeaks, replay
from graphc.torch.fit.eager import eager_peak

TABLES = Path(__file__).with_suffix(".json")

UNITS = {"MB": 10**6, "MiB": 2**20}

ATTENTION = {"sdpa": "sdpa", "allocated": "sdpa", "reserved": "sdpa"}
"""The attention of a column; eager in others."""


class Values(TorchFunctionMode):
    """Answers to two questions of models about values: masks are all ones, no layer is dropped."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is torch.all:
            return torch.tensor(True)
        if function is torch.rand and args == ([],):
            return torch.tensor(0.5)
        return function(*args, **(kwargs or {}))


class Loop(nn.Module):
    """A model in a loop that assigns outputs to one variable: the last outputs stay meanwhile."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> Any:
        with torch.no_grad():
            last = self.model(**inputs)
        found = self.model(**inputs)
        del last
        return found


class OneByOne(torch.optim.AdamW):
    """AdamW that updates one parameter at a time, as the class of transformers did."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            group["foreach"] = False
        return super().step(closure)


OPTIMIZERS = {
    None: None,
    "adamw": lambda module: torch.optim.AdamW(module.parameters()),
    "adamw, one by one": lambda module: OneByOne(module.parameters()),
}


def model_of(table: dict[str, Any], column: str) -> nn.Module:
    """Return the model of a table without data, in training mode."""
    config = getattr(transformers, table["config"])(**table["settings"])
    with torch.device("meta"):
        model = getattr(transformers, table["class"])._from_config(
            config,
            torch_dtype=getattr(torch, table["precision"]),
            attn_implementation=ATTENTION.get(column, "eager"),
        )
    if column == "checkpointed":
        model.gradient_checkpointing_enable()
    return model.train()


def inputs_of(table: dict[str, Any], batch: int, length: int) -> dict[str, torch.Tensor]:
    """Return the inputs of a step without data; the length of images is their height."""
    numbers = torch.zeros(batch, length, dtype=torch.int64, device="meta")
    if "Image" in table["class"]:
        pixels = torch.zeros(batch, 3, length, length, device="meta")
        return {"pixel_values": pixels, "labels": numbers[:, 0]}
    inputs = {"input_ids": numbers, "attention_mask": numbers.clone()}
    if table["optimizer"] is not None:
        inputs["labels"] = numbers[:, 0] if "Sequence" in table["class"] else numbers.clone()
    return inputs


def predict(table: dict[str, Any], column: str, batch: int, length: int) -> AllocatorPeaks:
    """Return the peaks of a step of a table."""
    model, kept = model_of(table, column), []

    def logits(found: Any, _: Any) -> torch.Tensor:
        kept.append(found)
        return found.logits.sum()

    alone = table["optimizer"] is None
    call = (
        Loop(model) if alone else model,
        logits if alone else None,
        (torch.zeros((), device="meta"),) if alone else (),
        inputs_of(table, batch, length),
    )
    with Values():
        found = eager_peak(
            call,
            OPTIMIZERS[table["optimizer"]],
            # Of GPUs, only rates of arithmetic and cuBLAS's workspaces differ.
            device=replace(find_device("t4"), architecture=table["architecture"] or 0),
            is_accumulating=table.get("keeps_gradients", False),
        )
    kept.clear()
    return replay(found.trace)


def rows_of(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with predictions."""
    unit, context = UNITS[table["unit"]], table.get("context", 0)
    for batch, length, *figures in table["rows"]:
        for column, published in zip(table["columns"][2:], figures, strict=True):
            if published is None:
                continue
            peaks = predict(table, column, batch, length)
            is_reserved = column in ("reserved", "occupied", "checkpointed")
            predicted = peaks.reserved_bytes if is_reserved else peaks.allocated_bytes
            figure = predicted / unit + context
            yield {
                "model": table["name"],
                "batch": batch,
                "length": length,
                "column": column,
                "published": published,
                "predicted": round(figure, 1),
                "error_percent": round(100 * (figure / published - 1), 2),
                "unit": table["unit"],
                "is_doubtful": [batch, length] in table.get("doubtful", []),
                "transformers": transformers.__version__,
            }


def summary_of(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the number of rows without doubt, and their absolute errors in percent."""
    errors = sorted(abs(row["error_percent"]) for row in rows if not row["is_doubtful"])
    return {
        "rows": len(errors),
        "median_error_percent": round(statistics.median(errors), 2),
        "worst_error_percent": errors[-1],
        "within_1_percent": sum(each <= 1 for each in errors),
        "within_5_percent": sum(each <= 5 for each in errors),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", nargs="*", help="names of tables; all without them")
    output_argument(parser, "published_peaks.json")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    tables = json.loads(TABLES.read_text())["tables"]
    path = arguments.output
    rows = json.loads(path.read_text())["rows"] if path.exists() else []
    for table in tables:
        is_of_this_version = table["transformers"] == transformers.__version__
        if not is_of_this_version or table["name"] not in (arguments.tables or [table["name"]]):
            continue
        found = list(rows_of(table))
        print_table([{**row, "published": str(row["published"])} for row in found])
        rows = [row for row in rows if row["model"] != table["name"]] + found
        write_json(path, {"summary": summary_of(rows), "rows": rows, **circumstances(["torch"])})
    print(summary_of(rows) if rows else f"no table is for transformers {transformers.__version__}")


if __name__ == "__main__":
    main()
