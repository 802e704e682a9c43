"""A user's mistake is one line: what is wrong, and what was perhaps meant. The exit code is 2."""

import json
import re

import pytest
from cli.running import run

from graphc.cli import main

SMALL = ("layers=2", "hidden=8", "inputs=4", "batch=2")


def complaint(capsys, *arguments, expected=2):
    """Return the message of a refused command: one line, and one per value if no plan fits."""
    try:
        code = main(arguments)
    except SystemExit as left:
        code = left.code
    out, error = capsys.readouterr()
    assert (code, out) == (expected, "")
    _, *values = error.splitlines()
    assert expected == 3 or not values
    assert all(re.match(r" +[\d.]+ \w+  \S", line) for line in values)
    return error


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plam", "mlp"), "there is no 'plam'; choose one of: plan, .*did you mean plan"),
        (("plan", "mpl"), "unknown model 'mpl'.*did you mean mlp"),
        (("plan", "MLP"), "did you mean mlp"),
        (("plan", "mlp", "layer=3"), "no setting 'layer'; it takes layers, .*did you mean layers"),
        (
            ("plan", "mlp", "--alocate", "packed"),
            "unknown option '--alocate'; did you mean --allocate",
        ),
        (
            ("plan", "mlp", "--alocate=packed"),
            "unknown option '--alocate'; did you mean --allocate",
        ),
        (("plan", "mlp", "--allocate", "pack"), "'pack'; choose one of.*did you mean packed"),
        (("plan", "mlp", "--recompute", "optimale"), "'optimale'.*did you mean optimal"),
        (("plan", "mlp", "--optimizer", "adamm"), "'adamm'; choose one of: .*did you mean adam"),
        (("train", "digit"), "there is no 'digit'; choose one of.*did you mean digits"),
        (("train", "digits", "hiden=3"), "did you mean hidden"),
        (("plan",), "required: MODEL;"),
        (("plan", "mlp", "--batch", "4"), "unknown option '--batch'; .* are given as batch=..."),
        (("plan", "mlp", "--batch=4"), "unknown option '--batch'; .* are given as batch=..."),
        (
            ("plan", "mlp", "--device", "a1000"),
            "^graphc: unknown device 'a1000'.*did you mean a100",
        ),
        (("plan", "mlp", "--device", "17GB"), "no GPU is sold with 17GB; choose one of: 8GB"),
        (("plan", "mlp", "--memory", "16GB"), "unknown option '--memory'.*such as --device 16GB"),
        (("batch", "mlp", "--vram=24GB"), "unknown option '--vram'.*such as --device 24GB"),
        (("train", "n.py:f", "--data", "a.npz", "--plot", "a.png"), "did you mean --curve"),
        ((), "required: COMMAND"),
        (("plan", "mlp", "3"), "'3' is not of the form key=value"),
        (("plan", "mlp", "--steps", "many"), "--steps: invalid int value: 'many'"),
        (("plan", "mlp", "--budget", "1GiB", "--budget", "2GiB"), "budget: is given twice, as '1G"),
        (("plan", "mlp", "--accumulate", "2", "--accumulate=3"), "as 2 and 3; give one"),
        (("plan", "mlp", "--fuse", "--no-fuse"), "give one of --fuse and --no-fuse, not both"),
        (("ops", "x"), "'x' is an unexpected argument"),
        (("ops", "a=b"), "'a=b' is an unexpected argument"),
        (("plan", "mlp", "--accumulate", "1000000000"), "accumulate must be at most 1024"),
        (("plan", "mlp", "batch=1000000000000", "hidden=1000000000"), r"less than 2\*\*60 bytes"),
        (("plan", "lstm", "hidden=10000000000", "seq_len=2"), r"less than 2\*\*60 bytes"),
        (("plan", "unet", "depth=1000000000000"), r"a multiple of 2\*\*1000000000000"),
        (("plan", "mlp", "batch=" + "9" * 100_000), "batch must be an integer"),
        (("plan", "mlp", "--accumulate", "9" * 100_000), "invalid int value"),
        (("plan", "mlp", "--budget", "9" * 100_000), "must be a size such as 7GiB"),
        (("plan", "mlp", "--learning-rate", "9" * 100_000), "between 0 and 1e"),
        (("plan", "mlp", "--clip-norm", "x" * 100_000), "invalid float value"),
        (("plan", "x" * 100_000), "unknown model"),
        (("plan", "x" * 100_000 + ":f"), "there is no file"),
        (("plan", "a\0b:f"), "there is no file"),
        (("plan", "mlp", "batch=" + "(" * 100_000), "batch must be an integer"),
        (("plan", "mlp", "x" * 100_000), "key=value"),
    ],
    ids=lambda given: re.sub(r"(.)\1{40,}", r"\1...", str(given))[:80],
)
def test_mistakes_are_one_line_errors(capsys, arguments, message):
    error = complaint(capsys, *arguments)
    assert re.search(message, error)
    assert len(error) < 1000


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("mlp", "layers=1000000000"), ("lstm", "layers=1000000000"),
                                       ("lstm", "seq_len=1000000000")])  # fmt: skip
def test_a_network_without_end_is_given_up(capsys, arguments):
    assert "too many nodes and parameters" in complaint(capsys, "plan", *arguments)


def test_a_file_without_a_function_says_which_there_are(capsys, tmp_path):
    path = tmp_path / "nets.py"
    path.write_text("def small(): pass\ndef large(): pass\ndef _part(): pass\n")
    assert "names no function; give file.py:function, one of: small, large" in complaint(
        capsys, "plan", str(path)
    )
    error = complaint(capsys, "plan", f"{path}:smal")
    assert "no function 'smal'; it has one of: small, large" in error
    path.write_text("x = 1\n")
    assert "of which it has none" in complaint(capsys, "plan", str(path))
    path.write_text("def broken(\n")
    assert "none that can be read" in complaint(capsys, "plan", str(path))


def test_a_budget_that_only_packed_could_keep_advises_it(capsys):
    wanted = ("plan", "mlp", *SMALL, "--budget", "300B")
    told = complaint(capsys, *wanted, "--allocate", "sharing", expected=3)
    assert "use allocate='packed', which needs fewer bytes" in told
    assert "allocate='packed'" not in complaint(capsys, *wanted, expected=3)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not valid JSON"), ('{"nodes": []}', "at least one node"), (None, "cannot read")],
)
def test_remat_names_its_file(capsys, tmp_path, content, message):
    path = tmp_path / "problem.json"
    if content is not None:
        path.write_text(content)
    error = complaint(capsys, "remat", str(path))
    assert str(path) in error
    assert message in error


def test_remat_names_its_file_where_nothing_fits(capsys, tmp_path):
    path = tmp_path / "problem.json"
    path.write_text(json.dumps({"nodes": [{"id": 0, "cost": 1, "bytes": 9}]}))
    assert str(path) in complaint(capsys, "remat", str(path), "--budget", "3", expected=3)
    assert "finite" in complaint(capsys, "remat", str(path), "--seconds", "inf")


def test_out_of_memory_and_deep_recursion_are_one_line_errors(capsys, tmp_path):
    path = tmp_path / "nets.py"
    path.write_text("def large(): raise MemoryError('9 TiB')\n")
    assert "9 TiB" in complaint(capsys, "plan", f"{path}:large")
    path.write_text("def deep(): return deep()\n")
    assert "recursion" in complaint(capsys, "plan", f"{path}:deep")


def test_an_option_repeated_with_the_same_value_counts_once(capsys):
    twice = ("--fuse", "--fuse", "--allocate", "packed", "--allocate=packed", SMALL[0])
    assert run(capsys, "plan", "mlp", *SMALL, *twice)[0] == 0


def test_the_first_entry_that_fits_nowhere_is_named(capsys):
    assert run(capsys, "plan", "mlp", *SMALL, "--json")[0] == 0
    assert "'stray'" in complaint(capsys, "plan", "mlp", "--json", *SMALL, "stray", "other")
