"""Command lines with random changes end with a code that means something, and no traceback."""

import json
import os
import re

import pytest
from plans.changed_files import planned
from robustness.mutations import CHARACTERS, NUMBERS
from robustness.test_changed_files import BUFFERS, PROBLEM
from robustness.trials import check

from graphc import save_plan
from graphc.cli import main
from graphc.errors import GraphcError

SMALL = "mlp layers=2 hidden=8 inputs=4 classes=3 batch=2"
LINES = (
    f"plan {SMALL}",
    f"plan {SMALL} --optimizer adam --recompute sublinear --allocate sharing --text",
    f"plan {SMALL} --budget 20KiB --json --precision bf16 --device a100",
    f"plan {SMALL} --max-extra-flops 0.3 --reorder off --fuse on --clip-norm 1.0 --accumulate 2",
    f"plan {SMALL} --schedule cosine --warmup 3 --steps 20 --weight-decay 0.01 -o out.json",
    f"plan {SMALL} --frontier --json",
    "plan plan.json --text",
    "plan nets.py:loss width=4",
    "plan lstm seq_len=2 batch=2 layers=1 hidden=4 inputs=3 classes=5 --json",
    "plan unet batch=1 image=8 channels=1 classes=2 width=2 depth=2 --optimizer momentum --json",
    "plan gpt2 layers=1 width=8 heads=2 seq_len=4 batch=2 vocab=11 positions=8 drop=0.1 --json",
    "plan resnet depth=50 units=(1,1,1,1) batch=1 image=32 classes=3 form=common --json",
    f"compare {SMALL} --json",
    f"explain {SMALL} --peak",
    "explain plan.json %1",
    "explain plan.json --json",
    f"view {SMALL} -o page.html",
    "view plan.json -o page.html",
    "remat problem.json --budget 700 --seconds 0 --json",
    "pack buffers.csv --capacity 1KiB --alignment 4 -o offsets.csv",
    "batch mlp layers=2 hidden=8 inputs=4 classes=3 --budget 64KiB",
    "ops --json",
    "devices --json",
)
"""Commands that work, in a folder with the files that they name."""

WORDS = (
    "--json", "--text", "--budget", "--recompute", "optimal", "none", "-o", "-", "--", "--help", "",
    "=", "x=", "=3", "batch=0", "layers=2.5", "hidden=(1,2)", "dtype=float16", "dtype=f99",
    "drop=2", "layers=None", "width=nan", "/", ".", "missing.json", "nets.py", "nets.py:none",
    "é", "\x1b[2J", "\udc80", "--allocate=packed", "--precision", "fp16", "--device", "cuda:9",
    "--seed", "--peak",
)  # fmt: skip

counts = pytest.mark.parametrize("count", [25, pytest.param(500, marks=pytest.mark.slow)])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder in which the commands run."""
    monkeypatch.chdir(tmp_path)
    save_plan(planned(), "plan.json")
    (tmp_path / "problem.json").write_text(json.dumps(PROBLEM))
    (tmp_path / "buffers.csv").write_text(BUFFERS)
    (tmp_path / "nets.py").write_text(
        "import graphc as g\n"
        "def loss(width=4):\n"
        "    return g.sum(g.relu(g.linear(g.input('x', (2, 3)), width)))\n"
        "def nothing(): return None\n"
        "def broken(): return 1 / 0\n"
    )
    return tmp_path


def changed(words, random):
    """A command line with one word removed, added, repeated, exchanged or changed inside."""
    words, at = list(words), random.randrange(len(words))
    match random.randrange(7):
        case 0:
            del words[at]
        case 1:
            words.insert(at, random.choice(WORDS))
        case 2:
            words[at] = random.choice(WORDS)
        case 3:
            words.insert(at, random.choice(random.choice(LINES).split()))
        case 4:
            words[at], words[-1] = words[-1], words[at]
        case 5:
            cut = random.randrange(len(words[at]) + 1)
            words[at] = words[at][:cut] + random.choice(CHARACTERS) + words[at][cut + 1 :]
        case _:
            words[at] = re.sub(r"\d+", lambda _: random.choice(NUMBERS), words[at], count=1)
    return words


class UnknownCodeError(Exception):
    """A command ended with a code that means nothing."""


@counts
def test_a_changed_command_line_ends_with_a_code_that_means_something(count, folder, capsys):
    start = sorted(os.listdir(folder))

    def case(random):
        words = random.choice(LINES).split()
        for _ in range(random.choice([0, 1, 1, 2, 3])):
            words = changed(words, random) if words else words
        try:
            code = main(words)
        except SystemExit as left:
            code = left.code
        out, error = capsys.readouterr()
        if code not in (0, 2, 3) or "Traceback" in out + error:
            raise UnknownCodeError(f"{code}: {words}")
        if code != 0:
            assert (out + error).strip(), words
            raise GraphcError(error)
        made = set(os.listdir(folder)) - set(start)
        assert not [name for name in made if name.startswith(".")], (words, made)

    check("command line", count, case)
