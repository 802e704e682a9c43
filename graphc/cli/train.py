"""graphc train: train on real data, with checkpoints from which a later run can resume."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.progress import Progress as ProgressBar

from graphc.cli import torch_model
from graphc.cli.arguments import (
    add_options,
    add_recipe,
    add_strategy,
    check_settings,
    check_writable,
    parse_settings,
    recipe,
)
from graphc.cli.models import add_loss, find_model, made_by
from graphc.cli.onnx_model import SUFFIX, loss_of, read
from graphc.cli.terminal import Console, say
from graphc.compiler import CompileOptions
from graphc.errors import OptionError
from graphc.importing.network import Network
from graphc.ir.builder import trace
from graphc.ir.graph import Input
from graphc.plans.printout import summary_rows
from graphc.runtime.ranks.world import find_world
from graphc.training.digits import DigitsTraining, Epoch
from graphc.training.feeds import ArrayFeeds, FunctionFeeds
from graphc.training.onnx_training import MeanLoss, OnnxTraining
from graphc.training.recipe import Recipe
from graphc.training.text import Progress, TextTraining

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

Run = DigitsTraining | TextTraining | OnnxTraining
Report = Epoch | Progress | MeanLoss

DIGITS = Recipe(optimizer="adam", learning_rate=1e-3)
ONNX = Recipe(optimizer="adam", learning_rate=1e-3)
TEXT = Recipe(optimizer="adamw", learning_rate=3e-3, schedule="cosine", warmup=100, clip_norm=1.0)

PROMPTS = (b"def ", b"import ", b"class ")
SAMPLE_BYTES = 200


def add(commands: Commands) -> None:
    """Register the command and its tasks."""
    parser = commands.add_parser("train", help="train on real data")
    tasks = parser.add_subparsers(required=True, metavar="TASK")

    digits = tasks.add_parser("digits", help="handwritten digits, from scikit-learn")
    _add_common(digits, DIGITS, "model (mlp or conv), layers, hidden, batch")
    digits.add_argument("--epochs", type=int, default=20, help="passes over the data (default: 20)")
    digits.set_defaults(run=_digits)

    text = tasks.add_parser("text", help="a small GPT on the bytes of a text")
    _add_common(text, TEXT, "layers, width, heads, seq_len, batch, drop")
    text.add_argument(
        "--file", metavar="FILE", help="the text (default: the standard library's sources)"
    )
    text.add_argument("--steps", type=int, default=2000, help="steps of the run (default: 2000)")
    text.set_defaults(run=_text)

    network = tasks.add_parser(
        "onnx", help="the network of FILE.onnx; the word onnx may be omitted"
    )
    network.add_argument("model", metavar="FILE.onnx", help="the network and its initial weights")
    _add_network(network, "extents that the file leaves open")
    network.set_defaults(run=_onnx)

    module = tasks.add_parser(
        "torch", help="the PyTorch module of file.py:function; the word torch may be omitted"
    )
    module.add_argument(
        "model", metavar="file.py:function", help="it returns the module and its arguments"
    )
    _add_network(module, "arguments of the function")
    module.set_defaults(run=_torch)


def _add_network(parser: argparse.ArgumentParser, settings: str) -> None:
    """Add the arguments for training an imported network."""
    _add_common(parser, ONNX, settings)
    add_loss(parser)
    parser.add_argument(
        "--data", metavar="DATA", required=True,
        help="FILE.npz with an array (examples, ...) an input, or file.py:function, which returns "
        "feeds one after another",
    )  # fmt: skip
    parser.add_argument("--steps", type=int, default=100, help="steps of the run (default: 100)")
    parser.add_argument(
        "--export", metavar="FILE",
        help="write the trained network as ONNX, with the outputs of its file",
    )  # fmt: skip


def with_task(arguments: Sequence[str]) -> list[str]:
    """Return the command line with the task inserted that a file's name implies."""
    listed = list(arguments)
    if listed[:1] == ["train"] and listed[1:2]:
        if listed[1].endswith(SUFFIX):
            listed.insert(1, "onnx")
        elif ".py:" in listed[1]:
            listed.insert(1, "torch")
    return listed


def _add_common(parser: argparse.ArgumentParser, default: Recipe, settings: str) -> None:
    parser.add_argument("settings", nargs="*", metavar="key=value", help=settings)
    add_strategy(parser)
    add_options(parser, CompileOptions, ("device", "threads", "rank_timeout"))
    # All processes of one launch train together.
    add_recipe(parser, replace(default, ranks=find_world().size))
    add_options(parser, CompileOptions, ("seed",))
    parser.add_argument("--save", metavar="FILE", help="write a checkpoint here as the run goes")
    parser.add_argument("--resume", metavar="FILE", help="go on from a checkpoint, bit for bit")
    parser.add_argument("--json", action="store_true", help="one JSON object at the end")


def _digits(options: argparse.Namespace) -> None:
    _check_count("--epochs", options.epochs)
    settings = parse_settings(options.settings)
    check_settings("digits", DigitsTraining, settings, ("model", "layers", "hidden", "batch"))
    run = DigitsTraining(recipe(options), options.epochs, dump=options.dump, **settings)
    _train(run, options, "digits")


def _text(options: argparse.Namespace) -> None:
    _check_count("--steps", options.steps)
    if options.warmup is None:
        options.warmup = min(TEXT.warmup, options.steps // 10)
    settings = parse_settings(options.settings)
    sizes = ("layers", "width", "heads", "seq_len", "batch", "drop")
    check_settings("text", TextTraining, settings, sizes)
    run = TextTraining(recipe(options), options.steps, options.file, dump=options.dump, **settings)
    _train(run, options, "text")
    if options.json:
        return
    for prompt in PROMPTS:
        sample = run.sample(prompt, SAMPLE_BYTES)  # on all ranks, since parameters may be sharded
        if run.training.rank == 0:
            say("-" * 40)
            say(sample.decode(errors="replace"))


def _onnx(options: argparse.Namespace) -> None:
    settings = parse_settings(options.settings, any_key=True)
    asked, trainable = settings.pop("loss", None), settings.pop("trainable", None)
    _train_network(options, read(options.model, settings, trainable, weights=True), asked, "onnx")


def _torch(options: argparse.Namespace) -> None:
    made, asked = made_by(options.model, parse_settings(options.settings))
    if not torch_model.is_called_module(made):
        raise OptionError(
            f"{options.model} must return a module of torch and its arguments; it returned {made!r}"
        )
    network = torch_model.read(made, asked.get("trainable"), weights=True)
    _train_network(options, network, asked.get("loss"), "torch")


def _train_network(
    options: argparse.Namespace, network: Network, asked: str | None, task: str
) -> None:
    _check_count("--steps", options.steps)
    if options.export:
        check_writable(options.export)
    loss, chosen = loss_of(options.model, network, asked), recipe(options)
    inputs = trace({"loss": loss}).inputs
    fed = [x for x in inputs if x.default is None]
    unread = {x.name for x in network.inputs.values()} - {x.name for x in inputs}
    feeds = _feeds(options.data, fed, unread, chosen.seed)
    run = OnnxTraining(chosen, options.steps, network, loss, feeds, dump=options.dump, task=task)
    _train(run, options, task)
    if options.export:
        run.export(options.export)


def _feeds(
    data: str, fed: Sequence[Input], unread: Collection[str], seed: int
) -> ArrayFeeds | FunctionFeeds:
    """Return the feeds that `data` names; they may contain inputs that the loss does not read."""
    if data.endswith(".npz"):
        return ArrayFeeds(data, fed, seed)
    if ":" not in data:
        raise OptionError(f"--data is a file of arrays, .npz, or file.py:function, got {data!r}")
    return FunctionFeeds(data, find_model(data, {}), unread)


def _check_count(option: str, count: int) -> None:
    if count < 1:
        raise OptionError(f"{option} is a whole number from 1 up, got {count}")


def _train(run: Run, options: argparse.Namespace, task: str) -> None:
    is_first = run.training.rank == 0
    if options.save and is_first:
        check_writable(options.save)
    if options.resume:
        run.resume(options.resume)
    reports: list[Report] = []
    console = Console(quiet=options.json or not is_first)
    for label, figure in summary_rows(run.training.plan):
        console.print(f"{label:<20}{figure}", highlight=False, soft_wrap=True)
    hidden = options.json or not console.is_terminal
    with ProgressBar(console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("training", total=run.steps, completed=run.done)
        for event in run.run():
            if isinstance(event, int):
                progress.update(bar, completed=event)
                continue
            reports.append(event)
            line = f"{_told(event)}  arena {run.training.arena_bytes:,} bytes"
            console.print(line, highlight=False, soft_wrap=True)
            if options.save:
                run.save(options.save)
            sys.stdout.flush()
    if options.json and is_first:
        say(json.dumps({**run.training.plan.summary(task), **_reported(reports)}))


def _told(event: Report) -> str:
    if isinstance(event, MeanLoss):
        return f"step {event.step:5d}  loss {event.loss:.6f}  {event.steps_per_second:.1f} steps/s"
    if isinstance(event, Epoch):
        return (
            f"epoch {event.number:3d}  loss {event.loss:.6f}  test accuracy "
            f"{event.test_accuracy:.2%}  {event.steps_per_second:.0f} steps/s"
        )
    return (
        f"step {event.step:5d}  {event.train_bits:.3f} bits a byte  held out "
        f"{event.test_bits:.3f}  {event.steps_per_second:.1f} steps/s"
    )


def _reported(reports: list[Report]) -> dict[str, Any]:
    """Return all figures except speeds, which differ from run to run."""
    rows = [asdict(report) for report in reports]
    for row in rows:
        row.pop("steps_per_second")
    return {"epochs" if isinstance(reports[0], Epoch) else "reports": rows}
