"""Training from the command line: accuracy, checkpoints, text."""

import json
import re

import pytest
import safetensors.numpy
from cli.running import run

import graphc as g
from graphc.models import mlp


def test_training_on_digits_gives_the_same_losses_under_every_plan(capsys):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    histories = []
    for options in (
        ["--allocate", "none"],
        ["--allocate", "inplace"],
        ["--allocate", "sharing"],
        ["--allocate", "packed"],
        ["--recompute", "mirror"],
        ["--budget", "1100000"],
        ["--max-extra-flops", "0.2"],
    ):
        code, out, _ = run(capsys, "train", "digits", "--epochs", "3", "--json", *options)
        assert code == 0
        histories.append(json.loads(out)["epochs"])
    assert all(history == histories[0] for history in histories)
    assert histories[0][-1]["test_accuracy"] > 0.9


@pytest.mark.parametrize(
    ("model", "percent"), [("mlp", 96), pytest.param("conv", 98, marks=pytest.mark.slow)]
)
def test_training_on_digits_reaches_its_accuracy(capsys, tmp_path, model, percent):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    save = tmp_path / "digits.safetensors"
    epochs = {"mlp": "20", "conv": "6"}[model]
    code, out, _ = run(
        capsys, "train", "digits", f"model={model}", "--save", str(save), "--epochs", epochs
    )
    assert code == 0
    assert save.exists()
    last = [line for line in out.splitlines() if line.startswith("epoch")][-1]
    assert float(last.split("accuracy")[1].split("%")[0]) > percent
    assert "steps/s" in last
    assert "arena" in last


@pytest.mark.parametrize(
    ("model", "epochs", "precision"),
    [
        ("mlp", "10", "bf16"),
        pytest.param("mlp", "10", "fp16", marks=pytest.mark.slow),
        pytest.param("conv", "4", "bf16", marks=pytest.mark.slow),
        pytest.param("conv", "4", "fp16", marks=pytest.mark.slow),
    ],
)
def test_sixteen_bits_reach_the_same_accuracy(capsys, model, epochs, precision):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    accuracy = {}
    for choice in ("fp32", precision):
        _, out, _ = run(
            capsys,
            "train",
            "digits",
            f"model={model}",
            "--epochs",
            epochs,
            "--precision",
            choice,
            "--json",
        )
        accuracy[choice] = json.loads(out)["epochs"][-1]["test_accuracy"]
    assert abs(accuracy[precision] - accuracy["fp32"]) <= 0.01


SMALL_TEXT = ("layers=1", "width=16", "heads=2", "seq_len=16", "batch=4")
RUNS = {
    "digits": ("train", "digits", "model=conv", "layers=2", "hidden=8", "--epochs", "{}"),
    "text": ("train", "text", *SMALL_TEXT, "drop=0.1", "--accumulate", "2", "--steps", "{}"),
}
RUNS["text"] += ("--schedule", "constant", "--warmup", "0", "--precision", "fp16")


@pytest.mark.parametrize("task", ["digits", pytest.param("text", marks=pytest.mark.slow)])
def test_a_resumed_run_goes_on_bit_for_bit(capsys, tmp_path, task):
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")

    def train(count, *options):
        arguments = [part.format(count) for part in RUNS[task]]
        if task == "text":
            arguments += ["--file", __file__]
        return run(capsys, *arguments, "--json", *options)

    files = [str(tmp_path / name) for name in ("whole", "half", "rest")]
    counts = (1, 2) if task == "digits" else (7, 14)
    _, whole, _ = train(counts[1], "--save", files[0])
    train(counts[0], "--save", files[1])
    code, rest, err = train(counts[1], "--resume", files[1], "--save", files[2])
    assert code == 0, err
    a, b = (safetensors.numpy.load_file(files[i]) for i in (0, 2))
    assert a.keys() == b.keys()
    assert all(a[name].tobytes() == b[name].tobytes() for name in a)
    key = "epochs" if task == "digits" else "reports"
    ends = [json.loads(out)[key][-1] for out in (whole, rest)]
    held_out = "test_accuracy" if task == "digits" else "test_bits"
    assert ends[0][held_out] == ends[1][held_out]
    for changed, message in (
        (("--learning-rate", "0.1"), "other settings: learning_rate was"),
        (("--seed", "4"), "seed was 0 and is 4"),
    ):
        code, _, err = train(counts[1], "--resume", files[1], *changed)
        assert code == 2
        assert message in err
    code, _, err = train(counts[0], "--resume", files[1])
    assert code == 2
    assert "has completed" in err


def test_a_file_without_notes_cannot_be_resumed(capsys, tmp_path):
    path = str(tmp_path / "plain.safetensors")
    g.compile(mlp(batch=2), optimizer=g.optim.SGD()).save(path)
    code, _, err = run(capsys, "train", "digits", "--resume", path)
    assert code == 2
    assert "does not record the progress of its run" in err


def test_text_is_learned_and_continued(capsys, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    code, out, err = run(
        capsys,
        "train",
        "text",
        *SMALL_TEXT[:1],
        "width=32",
        *SMALL_TEXT[2:4],
        "batch=8",
        "--file",
        str(path),
        "--steps",
        "200",
    )
    assert code == 0, err
    last = [line for line in out.splitlines() if line.startswith("step ")][-1]
    assert float(last.split("held out")[1].split()[0]) < 1.0
    assert out.count("-" * 40) == 3
    path.write_text("short")
    assert run(capsys, "train", "text", "--file", str(path))[0] == 2


def test_settings_may_follow_options_and_short_runs_warm_up_briefly(capsys, tmp_path):
    arguments = ["train", "text", "--steps", "3", *SMALL_TEXT, "--file", __file__, "drop=0.1"]
    code, out, err = run(capsys, *arguments, "--json")
    assert code == 0, err
    assert json.loads(out)["reports"][-1]["step"] == 3
    with pytest.raises(SystemExit):
        run(capsys, *arguments, "--unknown", "x")


def test_another_text_of_the_same_length_is_refused(capsys, tmp_path):
    files = [tmp_path / "a", tmp_path / "b"]
    for letter, path in zip("xy", files, strict=True):
        path.write_text(letter * 2000)
    saved = str(tmp_path / "saved")
    options = ("train", "text", *SMALL_TEXT, "--steps", "2", "--json", "--file")
    assert run(capsys, *options, str(files[0]), "--save", saved)[0] == 0
    code, _, err = run(capsys, *options, str(files[1]), "--resume", saved)
    assert code == 2
    assert "text was" in err


def test_a_diverged_run_ends_with_a_message(capsys):
    code, _, err = run(
        capsys, "train", "text", *SMALL_TEXT, "--steps", "9", "--file", __file__,
        "--learning-rate", "1e5", "--warmup", "0",
    )  # fmt: skip
    assert code == 4
    assert re.search(r"the loss of step \d is nan; --check-finite finds the op", err)
    assert "smaller --learning-rate" in err


def test_check_finite_names_the_step_and_the_op(capsys):
    code, _, err = run(
        capsys, "train", "text", *SMALL_TEXT, "--steps", "9", "--file", __file__,
        "--learning-rate", "1e5", "--warmup", "0", "--check-finite",
    )  # fmt: skip
    assert code == 4
    assert re.search(r"step \d is not finite: %?\S+ f32.* computed by \S+, contains", err)


def test_a_run_may_be_resumed_with_check_finite(capsys, tmp_path):
    saved = str(tmp_path / "saved")
    options = ("train", "text", *SMALL_TEXT, "--file", __file__, "--schedule", "constant")
    assert run(capsys, *options, "--steps", "1", "--save", saved)[0] == 0
    code, *told = run(capsys, *options, "--steps", "2", "--resume", saved, "--check-finite")
    assert code == 0, told


def test_text_has_no_rest_of_an_epoch(capsys):
    code, _, err = run(capsys, "train", "text", "--no-drop-last")
    assert code == 2
    assert "drawn at random positions" in err


def test_digits_train_on_all_images_without_drop_last(capsys, tmp_path):
    """1,437 images: 14 batches of 100 and one of 37."""
    pytest.importorskip("sklearn", reason="scikit-learn carries the digits")
    options = ("batch=100", "model=conv", "layers=1", "hidden=8", "--epochs", "1", "--json")
    for flags, steps in (((), 14), (("--no-drop-last",), 15)):
        save = str(tmp_path / f"{steps}.safetensors")
        code, out, err = run(capsys, "train", "digits", *options, *flags, "--save", save)
        assert code == 0, err
        (epoch,) = json.loads(out)["epochs"]
        assert 1.0 < epoch["loss"] < 2.5
        assert g.read_notes(save)["steps_done"] == str(steps)
