"""Reading what is no plan, and writing: clean errors, and a file that is whole or as it was."""

import os

import pytest
from plans.changed_files import place_of, tampered

import graphc as g
from graphc.errors import PlanError, PlanFileError

DAMAGED = {
    "empty": b"",
    "not valid JSON": b"graph {\n}\n",
    "binary": bytes(range(256)) * 20,
    "a pickle": b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00\x8c\x08builtins\x94.",
    "deep lists": b"[" * 200_000,
    "deep objects": b'{"a":' * 200_000,
    "NaN": b'{"format": NaN}',
    "a key twice": b'{"format": "graphc.plan", "format": "graphc.plan"}',
    "a list": b"[1, 2]",
    "many digits": b'{"format": ' + b"1" * 10_000 + b"}",
    "overflow": b'{"format": "graphc.plan", "version": 1e999}',
    "costs": b'{"format": 1, "device": {"name": "cpu"}, "measured": []}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_other_files_are_clean_errors(tmp_path, name):
    path = tmp_path / "plan.json"
    path.write_bytes(DAMAGED[name])
    with pytest.raises(PlanFileError, match=f"plan {str(path)!r}: .*graphc plan MODEL"):
        g.load_plan(path)


def test_truncated_files_are_refused(text, tmp_path):
    path = tmp_path / "plan.json"
    for part in (0.1, 0.5, 0.9, 0.999):
        path.write_text(text[: int(len(text) * part)])
        with pytest.raises(PlanFileError, match="truncated"):
            g.load_plan(path)


def test_invalid_paths_are_refused(plan, tmp_path):
    with pytest.raises(PlanFileError, match="there is no file"):
        g.load_plan(tmp_path / "gone.json")
    with pytest.raises(PlanFileError, match="cannot read"):
        g.load_plan(tmp_path)
    for path in (3, None):
        with pytest.raises(PlanFileError, match="a path must be"):
            g.load_plan(path)
        with pytest.raises(PlanFileError, match="a path must be"):
            g.save_plan(plan, path)
    for path in (tmp_path / "no" / "folder.json", tmp_path, "nul\0byte"):
        with pytest.raises(PlanFileError, match="nothing was written"):
            g.save_plan(plan, path)
    assert list(tmp_path.iterdir()) == []


def test_a_plan_in_a_file_that_would_corrupt_a_value_is_told_with_file_and_culprits(text, tmp_path):
    def change(content):
        place_of(content, "%0")["offset"] = place_of(content, "@layer1/weight")["offset"]

    path = tmp_path / "plan.json"
    path.write_text(tampered(text, change))
    with pytest.raises(PlanError) as error:
        g.load_plan(path)
    assert str(error.value).startswith(f"plan {str(path)!r}: ")
    assert "@layer1/weight" in error.value.culprits


def test_saving_replaces_a_file_completely_or_not_at_all(plan, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(PlanFileError, match="No space left"):
            g.save_plan(plan, path)
    assert [p.name for p in tmp_path.iterdir()] == ["plan.json"]
    assert path.read_text() == "old"
    g.save_plan(plan, path)
    assert path.read_text() == plan.to_json()
