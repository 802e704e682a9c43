"""graphc train: train on real data, with checkpoints from which a later run can resume."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from rich.progress import Progress as ProgressBar

from graphc.byte_sizes import exact_bytes
from graphc.cli.arguments import (
    add_options,
    add_recipe,
    add_strategy,
    check_settings,
    check_writable,
    parse_settings,
    recipe,
)
from graphc.cli.models import add_model, build_with_weights, find_model, sized
from graphc.cli.onnx_model import SUFFIX
from graphc.cli.plans import PICTURE, check_suffix
from graphc.cli.terminal import Console, say
from graphc.compiler.compile import CompileOptions
from graphc.errors import OptionError
from graphc.files import write_atomically
from graphc.ir.builder import trace
from graphc.ir.graph import Input
from graphc.models import MODELS
from graphc.plans.printout import summary_rows
from graphc.runtime.ranks.world import find_world
from graphc.training.digits import DigitsTraining, Epoch
from graphc.training.feeds import ArrayFeeds, FunctionFeeds
from graphc.training.network import MeanLoss, NetworkTraining
from graphc.training.recipe import Recipe
from graphc.training.text import Progress, TextTraining

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

Run = DigitsTraining | TextTraining | NetworkTraining
Report = Epoch | Progress | MeanLoss

DIGITS = Recipe(optimizer="adam", learning_rate=1e-3)
NETWORK = Recipe(optimizer="adam", learning_rate=1e-3)
TEXT = Recipe(optimizer="adamw", learning_rate=3e-3, schedule="cosine", warmup=100, clip_norm=1.0)

PROMPTS = (b"def ", b"import ", b"class ")
SAMPLE_BYTES = 200

EPOCHS, STEPS = 10, 100
"""Default lengths of a run on arrays, and of one on feeds from a function."""


def add(commands: Commands) -> None:
    """Register the command and its tasks."""
    parser = commands.add_parser("train", help="train on real data")
    tasks = parser.add_subparsers(required=True, metavar="TASK")

    digits = tasks.add_parser("digits", help="handwritten digits, from scikit-learn")
    _add_common(digits, DIGITS, "model (mlp or conv), layers, hidden, batch")
    digits.add_argument_group("data").add_argument(
        "--epochs", metavar="N", type=int, default=20, help="passes over the data (default: 20)"
    )
    _add_drop_last(digits)
    digits.set_defaults(run=_digits)

    text = tasks.add_parser("text", help="a small GPT on the bytes of a text")
    _add_common(text, TEXT, "layers, width, heads, seq_len, batch, drop")
    group = text.add_argument_group("data")
    group.add_argument(
        "--file", metavar="FILE", help="the text (default: the standard library's sources)"
    )
    group.add_argument(
        "--steps", metavar="N", type=int, default=2000, help="steps of the run (default: 2000)"
    )
    # Refused with a reason, since the other tasks have it.
    text.add_argument("--no-drop-last", action="store_true", help=argparse.SUPPRESS)
    text.set_defaults(run=_text)

    network = tasks.add_parser(
        "network", aliases=("onnx", "torch"),
        help="any MODEL of graphc plan, on arrays; the word network may be omitted",
    )  # fmt: skip
    add_model(network)
    _add_run(network, NETWORK)
    _add_data(network)
    network.set_defaults(run=_network)


def _add_data(parser: argparse.ArgumentParser) -> None:
    """Add the options for training a network on arrays."""
    group = parser.add_argument_group("data")
    group.add_argument(
        "--data", metavar="DATA", required=True,
        help="FILE.npz with an array (examples, ...) per input, or file.py:function, which returns "
        "feeds one after another",
    )  # fmt: skip
    group.add_argument(
        "--held-out", metavar="F", type=float, default=0.0,
        help="fraction of the examples of FILE.npz to evaluate on instead of training on them "
        "(default: 0)",
    )  # fmt: skip
    group.add_argument(
        "--epochs", metavar="N", type=int,
        help=f"passes over the examples of FILE.npz (default: {EPOCHS})",
    )  # fmt: skip
    group.add_argument(
        "--steps", metavar="N", type=int,
        help=f"steps of the run, instead of epochs (default for a function: {STEPS})",
    )  # fmt: skip
    _add_drop_last(group)
    group.add_argument("--curve", metavar="FILE.png", help="draw the losses; needs matplotlib")
    group.add_argument(
        "--export", metavar="FILE.onnx",
        help="write a trained ONNX file or torch module as ONNX, with its outputs",
    )  # fmt: skip


def _add_drop_last(parser: argparse._ActionsContainer) -> None:
    parser.add_argument(
        "--no-drop-last", dest="drop_last", action="store_false",
        help="train on the examples that remain at the end of an epoch, as a smaller batch",
    )  # fmt: skip


def with_task(arguments: Sequence[str]) -> list[str]:
    """Return the command line with the task inserted that its MODEL implies."""
    listed = list(arguments)
    if listed[:1] == ["train"] and listed[1:2]:
        model = listed[1]
        if model in MODELS or model.endswith((SUFFIX, ".py")) or ".py:" in model:
            listed.insert(1, "network")
    return listed


def _add_common(parser: argparse.ArgumentParser, default: Recipe, settings: str) -> None:
    """Add the arguments of a task with a network of its own."""
    parser.add_argument("settings", nargs="*", metavar="key=value", help=settings)
    _add_run(parser, default)


def _add_run(parser: argparse.ArgumentParser, default: Recipe) -> None:
    """Add the options of every run."""
    add_strategy(parser)
    add_options(parser, CompileOptions, ("device", "threads", "rank_timeout", "check_finite"))
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
    chosen = recipe(options)
    _check_drop_last(options, chosen)
    run = DigitsTraining(
        chosen, options.epochs, dump=options.dump, drop_last=options.drop_last, **settings
    )
    _train(run, options, "digits")


def _text(options: argparse.Namespace) -> None:
    _check_count("--steps", options.steps)
    if options.no_drop_last:
        raise OptionError(
            "--no-drop-last applies to epochs, but the batches of graphc train text are drawn at "
            "random positions of the text, so no examples remain; leave it out"
        )
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


def _network(options: argparse.Namespace) -> None:
    for path in (options.export, options.curve):
        if path is not None:
            check_writable(path)
    if options.curve is not None:
        check_suffix(options.curve, PICTURE)
    loss, network = build_with_weights(options.model, options.settings)
    if options.export and network is None:
        raise OptionError(
            f"--export writes an ONNX file or a torch module, and {options.model} is neither; "
            "leave it out, or write a checkpoint with --save"
        )
    chosen, inputs = recipe(options), trace({"loss": loss}).inputs
    fed = [x for x in inputs if x.default is None]
    known = set() if network is None else {x.name for x in network.inputs.values()}
    _check_drop_last(options, chosen)
    sized_build = None
    if not options.drop_last:
        if network is not None:
            raise OptionError(
                "--no-drop-last needs a network of graphc, whose loss is built for each size; "
                f"{options.model} is imported. Leave it out"
            )
        sized_build = sized(options.model, options.settings, ["batch"])
    feeds = _feeds(options, fed, known - {x.name for x in inputs}, chosen)
    imported = "onnx" if options.model.endswith(SUFFIX) else "torch"
    task = "network" if network is None else imported
    run = NetworkTraining(
        chosen, loss, feeds, epochs=options.epochs, steps=options.steps or 0, network=network,
        dump=options.dump, task=task, build=sized_build,
    )  # fmt: skip
    reports = _train(run, options, options.model if network is None else task)
    if options.export:
        run.export(options.export)
    if options.curve and run.training.rank == 0:
        _draw_curve(options, [report for report in reports if isinstance(report, MeanLoss)])


def _feeds(
    options: argparse.Namespace, fed: Sequence[Input], unread: Collection[str], chosen: Recipe
) -> ArrayFeeds | FunctionFeeds:
    """Return the feeds that --data names, and set the default length of the run.

    Feeds of a function may contain inputs that the loss does not read.
    """
    data: str = options.data
    if not 0 <= options.held_out < 1:
        raise OptionError(
            f"--held-out must be a fraction from 0 to below 1, got {options.held_out:g}"
        )
    if options.epochs is not None and options.steps is not None:
        raise OptionError("give one of --epochs and --steps, not both")
    if data.endswith(".npz"):
        if options.steps is None:
            options.epochs = EPOCHS if options.epochs is None else options.epochs
        _check_length(options)
        step_batches = chosen.accumulate * chosen.ranks
        return ArrayFeeds(data, fed, chosen.seed, step_batches, options.held_out, options.drop_last)
    if ":" not in data:
        raise OptionError(f"--data must be FILE.npz or file.py:function, got {data!r}")
    for option in ("epochs", "held_out"):
        if getattr(options, option):
            name = option.replace("_", "-")
            raise OptionError(
                f"--{name} needs --data FILE.npz, since the number of feeds of {data} is unknown"
            )
    if not options.drop_last:
        raise OptionError(
            f"--no-drop-last needs --data FILE.npz, since {data} determines its own batches"
        )
    options.steps = STEPS if options.steps is None else options.steps
    _check_length(options)
    return FunctionFeeds(data, find_model(data, {}), unread)


def _check_drop_last(options: argparse.Namespace, chosen: Recipe) -> None:
    if not options.drop_last and (chosen.ranks > 1 or chosen.accumulate > 1):
        raise OptionError(
            "--no-drop-last needs steps of one batch, got "
            f"--ranks {chosen.ranks} and --accumulate {chosen.accumulate}; leave it out"
        )


def _check_length(options: argparse.Namespace) -> None:
    for name in ("epochs", "steps"):
        if getattr(options, name) is not None:
            _check_count(f"--{name}", getattr(options, name))


def _check_count(option: str, count: int) -> None:
    if count < 1:
        raise OptionError(f"{option} must be an integer of at least 1, got {count}")


def _train(run: Run, options: argparse.Namespace, task: str) -> list[Report]:
    is_first = run.training.rank == 0
    if options.save and is_first:
        check_writable(options.save)
    if options.resume:
        run.resume(options.resume)
    reports: list[Report] = []
    console = Console(quiet=options.json or not is_first)
    for label, figure in (*summary_rows(run.plan), *_data_rows(run)):
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
        say(json.dumps({**run.plan.summary(task), **_figures(run), **_reported(reports)}))
    return reports


def _told(event: Report) -> str:
    if isinstance(event, MeanLoss):
        return _told_loss(event)
    if isinstance(event, Epoch):
        return (
            f"epoch {event.number:3d}  loss {event.loss:.6f}  test accuracy "
            f"{event.test_accuracy:.2%}  {event.steps_per_second:.0f} steps/s"
        )
    return (
        f"step {event.step:5d}  {event.train_bits:.3f} bits a byte  held out "
        f"{event.test_bits:.3f}  {event.steps_per_second:.1f} steps/s"
    )


def _told_loss(event: MeanLoss) -> str:
    counted = ("step", event.step, 5) if event.epoch is None else ("epoch", event.epoch, 3)
    parts = ["{} {:{}d}".format(*counted), f"loss {event.loss:.6f}"]
    if event.held_out_loss is not None:
        parts.append(f"held out {event.held_out_loss:.6f}")
    if event.held_out_accuracy is not None:
        parts.append(f"accuracy {event.held_out_accuracy:.2%}")
    if event.examples_per_second is None:
        return "  ".join([*parts, f"{event.steps_per_second:.1f} steps/s"])
    return "  ".join([*parts, f"{event.examples_per_second:,.0f} examples/s"])


def _figures(run: Run) -> dict[str, int]:
    """Return the numbers of examples of a network that is trained on arrays."""
    if isinstance(run, NetworkTraining) and isinstance(run.feeds, ArrayFeeds):
        return run.feeds.figures()
    return {}


def _data_rows(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the (label, figure) rows about the data and about the evaluation program."""
    if figures := _figures(run):
        counts = "{examples:,}; {epoch_examples:,} per epoch in {steps_per_epoch:,} steps"
        rest = "{held_out_examples:,} held out, {remaining_examples:,} left over"
        yield "examples", f"{counts}, {rest}".format(**figures)
    if isinstance(run, NetworkTraining) and run.evaluation is not None:
        arena = exact_bytes(run.evaluation.program.arena_bytes)
        yield "evaluation", f"{arena}, beside the arena"


def _draw_curve(options: argparse.Namespace, reports: Sequence[MeanLoss]) -> None:
    """Draw the losses of a run by epoch or step."""
    from graphc.view.picture import loss_picture  # needs matplotlib, an extra

    is_counted = reports[0].epoch is not None
    places = [report.epoch if report.epoch is not None else report.step for report in reports]
    curves = {
        "training": [report.loss for report in reports],
        "held out": [x.held_out_loss for x in reports if x.held_out_loss is not None],
    }
    picture = loss_picture(places, curves, "epoch" if is_counted else "step", options.model)
    write_atomically(options.curve, picture, OptionError)


def _reported(reports: list[Report]) -> dict[str, Any]:
    """Return the figures of reports that are computed and reproducible, without speeds."""
    rows = [
        {key: each for key, each in asdict(report).items() if each is not None}
        for report in reports
    ]
    for row in rows:
        row.pop("steps_per_second")
        row.pop("examples_per_second", None)
    return {"epochs" if isinstance(reports[0], Epoch) else "reports": rows}
