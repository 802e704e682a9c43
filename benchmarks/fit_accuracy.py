"""The predicted peak of eager training against the measured one, for real model classes on a CPU.

Each class of tests/pytorch/real that needs no values of tensors is trained twice: in float32 with
SGD, and in bfloat16 autocast with AdamW at twice the batch and, for models of tokens, another
length. The same row has the estimates of other packages for the module and its arguments:
torchinfo, torch-summary and fvcore give bytes of activations, to which gradients and optimizer
states are added by formula; accelerate is the formula of `accelerate estimate-memory`. Padding
masks are left out, since what transformers does with one depends on its values.

Run: python benchmarks/fit_accuracy.py [CLASS ...]
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import io
import random
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from report import circumstances, output_argument, write_json
from torch.utils._pytree import tree_leaves, tree_map

from graphc.errors import TorchError
from graphc.torch.budget.trace.measure import measured_peak
from graphc.torch.fit.eager import eager_peak

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from pytorch.real.cases import Case
from pytorch.real.registry import CLASSES

Row = dict[str, Any]
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
}
STEPS = (("sgd", None, 1), ("adamw", torch.bfloat16, 2))
"""Optimizer, dtype of autocast, and factor of the batch."""


def new(name: str, factor: int) -> Case:
    """Return a case with a larger batch, and for tokens with three quarters of the length."""
    torch.manual_seed(0)
    case = CLASSES[name]()
    kwargs = {key: value for key, value in case.kwargs.items() if key != "attention_mask"}

    def larger(x: Any) -> Any:
        is_batched = isinstance(x, torch.Tensor) and x.dim() and factor > 1
        return torch.cat([x] * factor) if is_batched else x

    if factor > 1 and {"input_ids", "labels"} == kwargs.keys() and kwargs["labels"].dim() == 2:
        kwargs = {key: value[:, : 3 * value.shape[1] // 4] for key, value in kwargs.items()}
    args, kwargs = tree_map(larger, (case.args, kwargs))
    return Case(case.module, args, kwargs, case.loss_fn)


def measured(case: Case, optimizer: str, autocast: torch.dtype | None) -> int:
    """Return the peak bytes of the second step."""
    trained = [each for each in case.module.parameters() if each.requires_grad]
    made = OPTIMIZERS[optimizer](trained, lr=1e-3)

    def step() -> None:
        with torch.autocast("cpu", autocast or torch.bfloat16, enabled=autocast is not None):
            if case.loss_fn is None:
                found = case.module(*case.args, **case.kwargs).loss
            else:
                found = case.module(*case.args[:-1], **case.kwargs)
                found = case.loss_fn(found, case.args[-1])
        found.backward()
        made.step()

    step()
    made.zero_grad()
    gc.collect()
    states = tree_leaves([case.args, dict(case.kwargs), *made.state.values()])
    held = [*case.module.parameters(), *case.module.buffers()]
    held += [each for each in states if isinstance(each, torch.Tensor)]
    return measured_peak(step, held)


def predicted(case: Case, optimizer: str, autocast: torch.dtype | None) -> int:
    call = (case.module, case.loss_fn, case.args, dict(case.kwargs))

    def made(module: torch.nn.Module) -> torch.optim.Optimizer:
        return OPTIMIZERS[optimizer]([p for p in module.parameters() if p.requires_grad])

    return eager_peak(call, made, autocast=autocast).peak_bytes


def by_others(case: Case, optimizer: str) -> dict[str, int]:
    """Return the estimates of other packages in bytes; packages that fail are left out."""
    trained = sum(p.nbytes for p in case.module.parameters() if p.requires_grad)
    extra = trained * (3 if optimizer == "adamw" else 1)  # gradients and states
    whole = sum(p.nbytes for p in case.module.parameters())
    given = case.args if case.loss_fn is None else case.args[:-1]
    found: dict[str, int] = {}

    def torchinfo() -> int:
        from torchinfo import summary

        kwargs = dict(case.kwargs)
        made = summary(case.module, input_data=given or kwargs, verbose=0, mode="train")
        return int(made.total_input + made.total_output_bytes + made.total_param_bytes + extra)

    def torch_summary() -> int:
        from torchsummary import summary

        x = next(each for each in tree_leaves((given, dict(case.kwargs))))
        made = summary(case.module, x, verbose=0)
        return int((made.total_input + 2 * made.total_output) * 4 + whole + extra)

    def fvcore() -> int:
        from fvcore.nn import ActivationCountAnalysis

        x = given or tuple(each for each in case.kwargs.values() if isinstance(each, torch.Tensor))
        analysis = ActivationCountAnalysis(case.module, x)
        analysis.unsupported_ops_warnings(False).uncalled_modules_warnings(False)
        return int(4 * analysis.total() + whole + extra)

    def accelerate() -> int:
        from accelerate.commands.estimate import estimate_training_usage

        return int(max(estimate_training_usage(whole, "float32").values()))

    for each in (torchinfo, torch_summary, fvcore, accelerate):
        with contextlib.suppress(Exception), contextlib.redirect_stdout(io.StringIO()):
            found[each.__name__] = each()
    return found


def row_of(name: str, optimizer: str, autocast: torch.dtype | None, factor: int) -> Row:
    case = new(name, factor)
    others = by_others(new(name, factor), optimizer)
    started = time.perf_counter()
    guess = predicted(case, optimizer, autocast)
    seconds = time.perf_counter() - started
    peak = measured(case, optimizer, autocast)
    return {
        "class": name,
        "optimizer": optimizer,
        "dtype": "float32" if autocast is None else "bfloat16",
        "measured_bytes": peak,
        "predicted_bytes": guess,
        "error": guess / peak - 1,
        "prediction_seconds": seconds,
        "other_errors": {key: value / peak - 1 for key, value in others.items()},
    }


def summary(rows: list[Row]) -> Row:
    """Return the median and worst absolute error of each predictor."""
    errors = {"graphc": [abs(row["error"]) for row in rows]}
    for row in rows:
        for name, error in row["other_errors"].items():
            errors.setdefault(name, []).append(abs(error))
    return {
        name: {"median": median(found), "worst": max(found), "rows": len(found)}
        for name, found in errors.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", metavar="CLASS")
    parser.add_argument("--minutes", type=float, default=60, help="no class begins after them")
    output_argument(parser, "fit_accuracy.json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    rows: list[Row] = []
    refused: dict[str, str] = {}
    names = options.classes or list(CLASSES)
    random.Random(0).shuffle(names)
    until = time.monotonic() + options.minutes * 60
    for name in names:
        if time.monotonic() > until:
            break
        for optimizer, autocast, factor in STEPS:
            try:
                rows.append(row_of(name, optimizer, autocast, factor))
            except TorchError as error:
                refused[name] = re.sub(r"/\S*/site-packages/", "", str(error))
                continue
            except Exception as error:
                print(f"{name}: the eager step fails: {error}", file=sys.stderr)
                continue
            print(f"{name:42} {optimizer:6} {rows[-1]['error']:+.4f}", flush=True)
    found = {
        name: f"{s['median']:.4f} {s['worst']:.4f} {s['rows']}" for name, s in summary(rows).items()
    }
    print(found)
    content = {"rows": rows, "refused": refused, "summary": summary(rows)}
    packages = ("torch", "transformers", "timm", "torchvision", "diffusers", "peft", "torchinfo",
                "torch-summary", "fvcore", "accelerate")  # fmt: skip
    write_json(options.output, {**circumstances(packages), **content})


if __name__ == "__main__":
    main()
