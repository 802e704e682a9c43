"""Options are declared once: what functions, the command line and recipes take follows from it."""

import argparse
import dataclasses
import inspect
import json
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphc as g
from graphc.cli import main
from graphc.cli.arguments import add_options
from graphc.compiler.compilation import plain
from graphc.compiler.compile import CompileOptions
from graphc.compiler.options import (
    FrontierOptions,
    NetworkOptions,
    PlacementOptions,
    PlanOptions,
    RecomputeOptions,
    StepOptions,
)
from graphc.compiler.pipeline import STEPS, before, make_plan
from graphc.errors import OptionError
from graphc.keywords import Flag, Options, declared, option, takes
from graphc.runtime.bind import BindOptions
from graphc.runtime.options import RunOptions
from graphc.training.recipe import Recipe

TAKERS = {
    g.compile: CompileOptions,
    g.plan: PlanOptions,
    g.frontier: FrontierOptions,
    g.bind: BindOptions,
}
GROUPS = (NetworkOptions, StepOptions, PlacementOptions, RecomputeOptions, RunOptions)


def loss():
    return g.mean(g.tanh(g.linear(g.input("x", (2, 3)), 2)))


def test_no_option_is_in_two_groups():
    names = [name for group in GROUPS for name in declared(group)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("function", TAKERS, ids=lambda function: function.__name__)
def test_signature_and_docstring_are_those_of_the_options(function):
    kind = TAKERS[function]
    signature, documented = inspect.signature(function), inspect.getdoc(function)
    assert list(signature.parameters) == list(inspect.signature(kind).parameters)
    for each in dataclasses.fields(kind):
        parameter = signature.parameters[each.name]
        wanted = parameter.empty if each.default is dataclasses.MISSING else each.default
        assert parameter.default is wanted
        assert f"\n    {each.name}: " in documented
        assert each.metadata["option"].meaning
    assert "{" not in documented
    assert function.__doc__.startswith(inspect.getdoc(function).splitlines()[0])


def test_the_public_keywords():
    """None may go, or change its default, without a word."""
    told = {name: p.default for name, p in inspect.signature(g.compile).parameters.items()}
    assert told == {
        "loss": None,
        "outputs": (),
        "optimizer": None,
        "clip_norm": None,
        "accumulate": 1,
        "ranks": 1,
        "shard": "none",
        "sync_norm": False,
        "precision": "fp32",
        "chunk_losses": None,
        "recompute": None,
        "allocate": "packed",
        "budget": None,
        "feature_map_budget": None,
        "max_extra_flops": None,
        "host_budget": None,
        "host_states": "none",
        "training": None,
        "alignment": 256,
        "costs": None,
        "roofline": None,
        "reorder": True,
        "kernels": "native",
        "fuse": None,
        "overlap_copies": False,
        "device": "cpu",
        "cuda_graph": True,
        "deterministic": True,
        "streams": 1,
        "cudnn": None,
        "tuning": None,
        "threads": None,
        "rank_timeout": 60.0,
        "states": None,
        "seed": 0,
        "poison": False,
        "check_finite": False,
        "dump": None,
    }
    assert told.keys() - declared(PlanOptions).keys() == declared(RunOptions).keys()
    removed = {"recompute", "budget", "feature_map_budget", "max_extra_flops", "training", "dump"}
    assert declared(PlanOptions).keys() - declared(FrontierOptions).keys() == removed


def test_an_unknown_keyword_suggests_similar_ones():
    with pytest.raises(OptionError, match=r"plan has no option 'budgt'; did you mean budget\?"):
        g.plan(loss(), budgt="7GiB")
    with pytest.raises(
        OptionError, match="bind has no option 'zzz'; its options are plan, device, cuda_"
    ):
        g.bind(g.plan(loss()), zzz=1)
    x = g.input("x", (2, 3))
    with pytest.raises(OptionError, match=r"conv2d has no option 'kernel_size'; its options are x"):
        g.conv2d(x, 4, kernel_size=3)
    with pytest.raises(OptionError, match=r"input has no option 'typ'; did you mean dtype\?"):
        g.input("x", (2,), typ="int32")
    with pytest.raises(OptionError, match=r"PlanOptions has no option 'optimiser'; did you mean"):
        PlanOptions(loss(), optimiser="SGD")
    with pytest.raises(OptionError, match=r"Program has no option 'seeds'; did you mean seed\?"):
        g.Program(g.plan(loss()), seeds=3)
    with pytest.raises(TypeError, match="optimizer"):
        g.frontier(loss())
    with pytest.raises(TypeError, match="positional"):
        g.plan(loss(), "cpu")


FUNCTIONS = [
    name
    for name in g.__all__
    if inspect.isfunction(found := getattr(g, name))
    and "options" not in inspect.signature(found).parameters
]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_public_function_refuses_an_unknown_keyword(name):
    function = getattr(g, name)
    given = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
    with pytest.raises(OptionError, match=rf"{name}_? has no option 'zzz'"):
        function(*[None] * len(given), zzz=1)
    assert pickle.loads(pickle.dumps(function)) is function


def test_what_is_no_plan_is_refused(tmp_path):
    program = g.compile(loss())
    for call in (g.Program, g.bind, g.profile, lambda plan: g.save_plan(plan, tmp_path / "p")):
        with pytest.raises(
            OptionError, match=r"must be a MemoryPlan, got <Program .*attribute plan"
        ):
            call(program)
        with pytest.raises(OptionError, match=r"must be a MemoryPlan, got <f32.*graphc.plan and"):
            call(loss())


TYPED = """
[mypy]
strict = true
mypy_path = {root}
[mypy-graphc.*]
follow_imports = {others}
[mypy-graphc,graphc.compiler.compile,graphc.ir.builder,graphc.devices.device,graphc.ir.graph,graphc.keywords,\
graphc.optim,graphc.compiler.options,graphc.plans.memory_plan,graphc.compiler.options,\
graphc.runtime.options,graphc.compiler.options]
follow_imports = silent
[mypy-numpy.*]
follow_imports = skip
follow_imports_for_stubs = true
"""
"""Settings of mypy for users' code. The named modules have the types of all options."""


@pytest.mark.parametrize("others", ["skip", pytest.param("silent", marks=pytest.mark.slow)])
def test_a_type_checker_sees_the_keywords(others, tmp_path):
    pytest.importorskip("mypy")
    path = tmp_path / "used.py"
    path.write_text(
        "import graphc as g\n"
        "x = g.input('x', (2, 3))\n"
        "g.plan(x, recompute='cheap', budget='1KiB', device=g.plan(x).device)\n"
        "g.compile(outputs=[x], precision='bf16').step()\n"
        "g.plan(x, recompte='cheap')\n"
        "g.plan(x, recompute='some')\n"
        "g.compile(x, seed='one')\n"
        "g.frontier(x)\n"
        "g.rellu(x)\n"
        "g.optim.Adma()\n"
    )
    settings = tmp_path / "mypy.ini"
    settings.write_text(TYPED.format(root=Path(g.__file__).parents[1], others=others))
    command = [sys.executable, "-m", "mypy", f"--config-file={settings}", str(path)]
    command += [f"--cache-dir={tmp_path / 'cache'}"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    lines = sorted({int(line.split(":")[1]) for line in done.stdout.splitlines()[:-1]})
    assert lines == [5, 6, 7, 8, 9, 10], done.stdout + done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": g.optim.SGD}, "optimizer must be an object such as"),
        ({"optimizer": "none"}, "unknown optimizer 'none'; choose one of: sgd, momentum, "),
        ({"optimizer": "adamm"}, r"muon; did you mean adam or adamw\?"),
        ({"budget": "1KiB", "max_extra_flops": 0.1}, "give only one of budget and max_extra_flops"),
        ({"budget": "1KiB", "recompute": "cheap"}, "omit recompute='cheap'"),
        ({"budget": "1KiB"}, "budgets require a training step; give an optimizer"),
        ({"budget": "much"}, "budget must be a size such as 7GiB"),
        ({"max_extra_flops": -1}, "max_extra_flops must be a fraction of a step's flops"),
        ({"clip_norm": 1.0}, "clip_norm and accumulate apply only to training"),
        ({"accumulate": 2}, "clip_norm and accumulate apply only to training"),
        ({"fuse": "yes"}, "fuse must be True or False, or None, got 'yes'"),
        ({"roofline": "h300"}, "unknown device profile 'h300'"),
        ({"device": "cuda", "roofline": "cpu"}, "does not describe a GPU"),
        ({"device": "cuda", "alignment": 64}, "alignment on a GPU must be a multiple of 256"),
        ({"precision": "tf32"}, "tf32 products require a GPU"),
        ({"costs": 3}, "costs must be a path or measured costs"),
    ],
)
def test_invalid_options_are_refused_before_tracing(options, message):
    with pytest.raises(OptionError, match=message):
        PlanOptions(**options)


def test_seeds_and_streams_are_refused_before_planning(monkeypatch):
    monkeypatch.setattr("graphc.compiler.compile.make_plan", lambda options: pytest.fail("planned"))
    for options in ({"seed": -1}, {"streams": 0}, {"device": "tpu"}):
        with pytest.raises(OptionError):
            g.compile(loss(), **options)


def test_options_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PlanOptions(loss()).budget = 3


@pytest.mark.parametrize("name", g.optim.OPTIMIZERS)
def test_a_name_means_an_optimizer_with_its_defaults(name):
    named, made = (g.plan(loss(), optimizer=o) for o in (name, g.optim.OPTIMIZERS[name]()))
    assert g.format_graph(named.graph) == g.format_graph(made.graph)
    assert named.settings == made.settings


def test_optimizers_have_names_wherever_objects_are_allowed():
    points = [g.frontier(loss(), optimizer=o) for o in ("adam", g.optim.Adam())]
    assert points[0] == points[1]
    assert g.compile(loss(), optimizer="sgd").plan.settings["optimizer"].startswith("SGD(")
    groups = g.optim.Groups([("bias", "sgd")], "adamw")
    assert groups == g.optim.Groups([("bias", g.optim.SGD())], g.optim.AdamW())
    assert g.optim.Muon(others="lion") == g.optim.Muon(others=g.optim.Lion())
    with pytest.raises(OptionError, match="unknown optimizer 'adma'"):
        g.optim.Groups([("bias", "adma")], "adamw")


def test_a_frontier_needs_an_optimizer():
    with pytest.raises(OptionError, match="optimizer must be an object"):
        g.frontier(loss(), optimizer=None)


def test_a_declared_option_is_a_keyword_and_a_flag():
    """All that a new option takes is its declaration."""

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Own(Options):
        size: int = option(
            3, "How many, one of {choices}.", choices=("3", "4"), check=lambda *_: None,
            flag=Flag("{choices} (default: {default})", metavar="N", parse=int),
        )  # fmt: skip

    @takes(Own)
    def doubled(options: Own) -> int:
        """Twice the size."""
        return 2 * options.size

    assert doubled() == 6
    assert doubled(size=4) == 8
    assert doubled.__doc__ == "Twice the size.\n\nArgs:\n    size: How many, one of 3, 4.\n"
    parser = argparse.ArgumentParser()
    add_options(parser, Own, ("size",))
    assert parser.parse_args(["--size", "4"]).size == 4
    assert "--size N" in parser.format_help()
    assert "3, 4 (default: 3)" in parser.format_help()


def test_every_option_of_a_plan_with_a_flag_is_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    text = capsys.readouterr().out
    for kind in (PlanOptions, Recipe):
        for name, told in declared(kind).items():
            if told.flag is not None and name not in declared(RunOptions):
                assert (told.flag.name or f"--{name.replace('_', '-')}") in text


def test_every_option_of_a_run_with_a_flag_is_on_the_command_line(capsys):
    with pytest.raises(SystemExit):
        main(["train", "digits", "--help"])
    text = capsys.readouterr().out
    for name, told in declared(Recipe).items():
        if told.flag is not None:
            assert (told.flag.name or f"--{name.replace('_', '-')}") in text


def test_recipes_have_the_options_of_a_plan_and_note_what_changes_numbers():
    recipe = Recipe(optimizer="sgd", schedule="cosine", clip_norm=1.0, budget="1KiB", fuse=True)
    assert recipe.compile_options(10).keys() <= declared(CompileOptions).keys()
    assert json.loads(recipe.notes(10, 3, batch=8)["settings"]) == {
        "accumulate": 1,
        "batch": 8,
        "clip_norm": 1.0,
        "learning_rate": None,
        "optimizer": "sgd",
        "precision": "fp32",
        "schedule": "cosine",
        "seed": 0,
        "steps": 10,
        "warmup": 0,
        "weight_decay": None,
    }
    assert json.loads(Recipe(device="cuda").notes(1, 0)["settings"])["device"] == "cuda"


# --- steps ---


def test_steps_can_be_tried_from_outside():
    seen = []

    def look(graph):
        seen.append(graph)
        return graph

    steps = (*before("simplify"), plain("look", look), *STEPS[len(before("simplify")) :])
    options = PlanOptions(loss(), optimizer=g.optim.SGD())
    plan = make_plan(options, steps)
    assert len(seen) == 1
    assert g.format_graph(plan.graph) == g.format_graph(make_plan(options).graph)
    assert g.bind(plan).plan is plan


def test_steps_are_done_for_the_options_they_are_for(tmp_path):
    def files(name, **options):
        g.plan(loss(), dump=tmp_path / name, **options)
        return [path.stem[3:] for path in sorted((tmp_path / name).glob("[0-9]*"))]

    forward = ["number-streams", "simplify", "common-subexpressions", "dead-code"]
    counted, fused = [*forward, "count-steps"], ["fuse", "inline-constants"]
    assert files("numpy", kernels="numpy") == ["forward", "inference", *counted, "order", "plan"]
    assert files("plain") == ["forward", "inference", *counted, *fused, "order", "plan"]
    assert files("training", training=True) == ["forward", *counted, *fused, "order", "plan"]
    assert files("gpu", device="cuda", precision="bf16", optimizer=g.optim.SGD(),
                 recompute="optimal") == [
        "forward", "chunk-losses", "mixed-precision", *forward[:3], "pad-classes",
        "scale-products", *forward[3:], "training-step",
        "common-subexpressions", "widen-products", "time-steps", "running-sums",
        "norm-gradients", "place-updates", "bias-gradients", "fuse-epilogues",
        "fuse", "fuse-reductions", "inline-constants", "recompute",
        "updates-together", "plan",
    ]  # fmt: skip


def test_the_document_names_every_step():
    text = (Path(__file__).parents[2] / "docs" / "writing-a-pass.md").read_text()
    (listed,) = re.findall(r"\n(`forward`.*?)\n\n", text, re.DOTALL)
    assert re.findall(r"`([\w-]+)`", listed) == [step.name for step in STEPS] + ["plan"]
