"""Every snippet of the documents runs, or the page says why it does not."""

import importlib.util
import json
import re
import shlex
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from cli.running import parsed, run
from docs.snippets import PAGES, ROOT, commands, named, output_of, shown_commands, snippets
from loops import case
from onnx_files import write_arrays, write_model
from runtime.emulated_gpu.emulated import emulate
from safetensors.numpy import save_file

from graphc.cli import main
from graphc.cli.models import arguments_of
from graphc.models import MODELS

LANGUAGES = {"console", "csv", "json", "python", "sh", "text"}
ELSEWHERE = {"README.md": 1, "docs/writing-an-op.md": 3}
"""Pages whose blocks of Python, so many, test_readme and test_writing_an_op run and look at."""

NETWORK = """
import graphc
x = graphc.input("x", (16, 32))
loss = graphc.mean(graphc.tanh(graphc.linear(x, 8)))
"""
PREPARED = {
    "docs/costs.md": NETWORK,
    "docs/cpu.md": NETWORK,
    "docs/onnx.md": "__import__('onnx_files').write_model('model.onnx')",
    "docs/gpu.md": NETWORK + "batches = [{'x': __import__('numpy').ones((16, 32), 'float32')}] * 3",
}
"""What stands before the first block of a page that shows a part."""

WEIGHTS = {
    "mlp": {"hidden.weight": (64, 32), "hidden.bias": (64,),
            "out.weight": (10, 64), "out.bias": (10,)},
    "conv": {"conv.weight": (8, 3, 3, 3), "norm.weight": (8,), "norm.bias": (8,),
             "norm.running_mean": (8,), "norm.running_var": (8,), "norm.num_batches_tracked": ()},
    "attention": {"norm.weight": (16,), "norm.bias": (16,), "attention.in_proj_weight": (48, 16),
                  "attention.in_proj_bias": (48,), "attention.out_proj.weight": (16, 16),
                  "attention.out_proj.bias": (16,)},
}  # fmt: skip
"""The state dicts of docs/from-pytorch.md, for where there is no PyTorch to write them."""

TAUGHT = [page for page in PAGES if named(page) not in ELSEWHERE]
WITH_PYTHON = [page for page in TAUGHT if any(s.language == "python" for s in snippets(page))]
WITH_TORCH = ["docs/from-pytorch.md", "docs/torch.md", "docs/torch-import.md"]


def test_every_snippet_says_what_it_is():
    for page in PAGES:
        assert {snippet.language for snippet in snippets(page)} <= LANGUAGES, page
        assert page.read_text().count("```") == 2 * len(snippets(page)), page
    assert len(WITH_PYTHON) >= 6


def test_pages_with_tests_of_their_own_have_no_further_block():
    for name, count in ELSEWHERE.items():
        assert sum(s.language == "python" and s.runs for s in snippets(ROOT / name)) == count


def run_python(page, namespace, skip=lambda text: False):
    """Run the Python of a page as one program, and compare what it prints with what is shown."""
    blocks = snippets(page)
    for block, after in zip(blocks, [*blocks[1:], None], strict=True):
        if block.language != "python" or not block.runs or skip(block.text):
            continue
        printed = output_of(block, namespace)
        if after is not None and after.language == "text":
            place = re.compile(r"^net\.py:\d+")
            shown, found = (place.sub("", text) for text in (after.text, printed))
            assert found == shown


@pytest.fixture
def on_emulated_gpu(monkeypatch):
    """Programs for a GPU run where there is none."""
    emulate(monkeypatch)


HEAVY = {
    "docs/networks.md",
    "docs/offload.md",
    "docs/reading-a-plan.md",
    "docs/recomputation.md",
    "docs/tutorial.md",
}
"""Pages whose Python plans or trains for about a second or longer."""


def test_the_python_of_every_page_compiles():
    for page in PAGES:
        for block in snippets(page):
            if block.language == "python":
                compile("\n" * block.line + textwrap.dedent(block.text), named(page), "exec")


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, id=named(page), marks=[pytest.mark.slow] if named(page) in HEAVY else [])
        for page in WITH_PYTHON
    ],
)
def test_the_python_of_a_page_runs(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    if named(page) == "docs/gpu.md":
        request.getfixturevalue("on_emulated_gpu")
    if named(page) in WITH_TORCH:
        random = np.random.default_rng(0)
        for name, shapes in WEIGHTS.items():
            tensors = {
                key: random.uniform(0.5, 1, s).astype(np.float32) for key, s in shapes.items()
            }
            save_file(tensors, f"{name}.safetensors")
    namespace = {"__name__": "net"}
    exec(PREPARED.get(named(page), ""), namespace)
    run_python(page, namespace, skip=lambda text: "torch" in text)


@pytest.mark.peers
@pytest.mark.parametrize("name", WITH_TORCH)
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch imports its compiler
def test_the_python_of_a_page_agrees_with_torch(name, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="torch is not installed")
    monkeypatch.chdir(tmp_path)
    run_python(ROOT / name, {"__name__": "net"})


def first(page, language):
    """The first block in a language on a page under docs."""
    return next(s.text for s in snippets(ROOT / "docs" / page) if s.language == language)


def prepare_files():
    """What the commands of the pages read and no earlier one has written."""
    network = first("tutorial.md", "python")
    Path("net.py").write_text(network.replace("batch=64, image", "batch=64, width=512, image"))
    Path("module.py").write_text(
        "import torch\n\n\ndef build():\n"
        "    layers = torch.nn.Linear(4, 4), torch.nn.Tanh()\n"
        "    return torch.nn.Sequential(*layers), (torch.ones(8, 4),)\n"
    )
    write_model("model.onnx")
    write_arrays("arrays.npz")
    images = np.zeros((200, 3, 32, 32), np.float32)
    np.savez("images.npz", images=images, labels=np.zeros(200, np.int32))
    Path("book.txt").write_text("It is a truth universally acknowledged. " * 200)
    Path("graph.json").write_text(first("recomputation.md", "json"))
    Path("lengths.txt").write_text("96 30\n160 5\n")
    Path("buffers.csv").write_text(first("packing.md", "csv"))
    for name, recompute in (("a.json", "none"), ("b.json", "cheap")):
        assert (
            main(["plan", "mlp", "layers=3", "--recompute", recompute, "--json", "-o", name]) == 0
        )


LONG = {
    "README.md",
    "docs/attention.md",
    "docs/cli.md",
    "docs/concepts.md",
    "docs/costs.md",
    "docs/gpu.md",
    "docs/lengths.md",
    "docs/parallel.md",
    "docs/reading-a-plan.md",
    "docs/recomputation.md",
    "docs/streams.md",
    "docs/training.md",
    "docs/tutorial.md",
    "docs/viewing.md",
}
WITH_COMMANDS = [
    pytest.param(page, id=named(page), marks=[pytest.mark.slow] if named(page) in LONG else [])
    for page in PAGES
    if any(line.startswith("graphc ") for line, _ in commands(page))
    and named(page) != "docs/cli.md"
]
"""Pages whose commands run; the list of all commands, which plan large networks, is only parsed."""


def test_the_commands_of_every_page_are_commands(monkeypatch):
    """The parser of the command line accepts them, and models have the settings that they give."""
    seen = set()
    for page in PAGES:
        for line in shown_commands(page):
            _, *arguments = shlex.split(line, comments=True)
            with case(f"{named(page)}: {line}"):
                options = parsed(monkeypatch, *arguments)
                if getattr(options, "model", None) in MODELS:
                    settings = [each for each in options.settings if "=" in each]
                    arguments_of(options.model, settings)
            seen.add(arguments[0])
    assert seen >= {"plan", "compare", "batch", "view", "explain", "fit", "train", "selftest"}


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_the_commands_of_a_page_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    prepare_files()
    ran = 0
    for line, below in commands(page):
        program, *arguments = shlex.split(line, comments=True)
        if program == "graphc":
            if any(a.endswith(".png") for a in arguments) and not importlib.util.find_spec(
                "matplotlib"
            ):
                continue
            if "cuda" in arguments:
                continue  # tests/cli/test_selftest.py has an emulated GPU
            if arguments[0] == "train":
                pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
                if "--epochs" not in arguments:
                    is_short = arguments[1] == "digits"
                    arguments += ["--epochs", "1"] if is_short else ["--steps", "2"]
            code, out, err = run(capsys, *arguments)
            # With the same number of steps as before; tests/cli/test_train.py goes on with a run.
            is_over = {"--resume", "--steps"} <= set(arguments)
            is_error = is_over or below.startswith("graphc: ")
            # A plan for this machine's memory is a success, whatever memory that is.
            verdicts = [each for each in out.splitlines() if each.startswith("needs ")]
            needs = any("more than this machine has" not in each for each in verdicts)
            is_over_memory = below.startswith("graphc: no packing") or needs
            expected = 3 if is_over_memory else 2 * is_error
            assert code == expected, (line, err)
            assert not is_over or "has completed 2 steps" in err
            ran += 1
    assert ran


def test_other_commands_name_targets_and_extras_that_there_are():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    seen = set()
    for page in PAGES:
        for line, _ in commands(page):
            program, *arguments = shlex.split(line, comments=True)
            seen.add(program)
            if program == "make":
                assert set(arguments) <= targets, line
            elif program == "pip":
                (extras,) = re.findall(r"'\.\[(.*?)\]'", line)
                assert set(extras.split(",")) <= set(project["optional-dependencies"]), line
            elif program == "mpirun":
                assert arguments[0] == "-n", line
                assert arguments[1].isdecimal(), line
                assert arguments[2] == "graphc", line
            else:
                assert program == "graphc" or (ROOT / program).is_file(), line
    assert seen >= {"graphc", "make", "pip"}


def test_json_that_is_shown_is_json():
    shown = [s.text for page in PAGES for s in snippets(page) if s.language == "json"]
    assert len(shown) >= 3
    for text in shown:
        assert isinstance(json.loads(text), dict)
