"""graphc fit for networks of graphc, which it plans; tests/pytorch/test_fit.py has those of torch.

The plans themselves are those of `graphc plan`.
"""

import json

import pytest
from cli.running import run
from onnx_files import write_model


@pytest.fixture
def file(tmp_path):
    """A small model of x (batch, 3)."""
    write_model(tmp_path / "net.onnx", "net.data")
    return tmp_path / "net.onnx"


@pytest.mark.parametrize(
    ("fit", "plan"),
    [
        (["mlp"], ["mlp"]),
        (["mlp", "--batch", "1", "--optimizer", "lion"], ["mlp", "batch=1", "--optimizer=lion"]),
        (
            ["lstm", "--seq", "2", "--batch", "2", "--dtype", "bfloat16"],
            ["lstm", "seq_len=2", "batch=2", "dtype=bfloat16"],
        ),
    ],
    ids=["mlp", "sizes", "lstm"],
)
def test_a_network_has_the_plan_of_its_sizes(capsys, fit, plan):
    rest = ["--device", "t4", "--json"]
    optimizer = [] if "--optimizer" in fit else ["--optimizer=adamw"]
    answers = [run(capsys, "fit", *fit, *rest), run(capsys, "plan", *plan, *optimizer, *rest)]
    found, expected = (json.loads(out) for _, out, _ in answers)
    assert found["arena_bytes"] == expected["arena_bytes"]
    assert found["arguments"] == expected["arguments"]


@pytest.mark.parametrize("command", ["plan", "fit"])
def test_a_network_that_does_not_fit_a_gpu_has_exit_code_3(capsys, command):
    sized = {"plan": ["mlp", "batch=9000000"], "fit": ["mlp", "--batch", "9000000"]}[command]
    code, out, _ = run(capsys, command, *sized, "--device", "t4", "--json")
    assert json.loads(out)["fits"] is False
    assert code == 3


def test_an_onnx_file_has_the_plan_of_its_loss(capsys, file):
    given = ["--loss", "mse", "--trainable", "b", "--device", "t4", "--json"]
    code, out, _ = run(capsys, "fit", str(file), "--batch", "8", *given)
    assert code == 0
    _, expected, _ = run(capsys, "plan", str(file), "batch=8", "--optimizer=adamw", *given)
    assert json.loads(out)["arena_bytes"] == json.loads(expected)["arena_bytes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gpt2", "--lora", "r=4"], "--lora is for modules of torch, and gpt2 is a network of"),
        (["gpt2", "--chunked-loss"], "--chunked-loss is for modules of torch"),
        (["gpt2", "--no-plans"], "--no-plans is for modules of torch"),
        (["mlp", "--seq", "4"], "mlp has no setting 'seq_len'"),
        (["mlp", "-o", "page.html"], "run graphc view mlp"),
        (["net.py:build", "--loss", "mse"], "--loss and --trainable are for ONNX files"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, list) else "",
)
def test_options_of_torch_give_one_line(capsys, arguments, message):
    code, _, err = run(capsys, "fit", *arguments)
    assert code == 2
    assert message in err
    assert len(err.splitlines()) == 1
