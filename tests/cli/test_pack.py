"""graphc pack: from a file to a file, and its messages."""

import csv
import json

import pytest
from buffer_families import cut_rectangle
from cli.running import run
from properties.lifetimes import overlaps

EXAMPLE = """id,lower,upper,size
b1,0,3,4
b2,3,9,4
b3,0,9,4
b4,9,21,4
b5,0,21,4
"""
"""The example of MiniMalloc's README; 12 bytes hold it."""


@pytest.fixture
def example(tmp_path):
    (tmp_path / "in.csv").write_text(EXAMPLE)
    return str(tmp_path / "in.csv")


def rows_of(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def test_offsets_come_out_with_the_ids(capsys, tmp_path, example):
    out = str(tmp_path / "out.csv")
    code, text, _ = run(capsys, "pack", example, "--capacity", "12B", "-o", out)
    assert code == 0
    assert "height     12 bytes = 12 B, the least there is" in text
    rows = rows_of(out)
    assert [row["id"] for row in rows] == ["b1", "b2", "b3", "b4", "b5"]
    columns = ([int(row[name]) for row in rows] for name in ("lower", "upper", "size", "offset"))
    assert overlaps(*columns) == []
    assert max(int(row["offset"]) + int(row["size"]) for row in rows) == 12
    code, again, _ = run(capsys, "pack", out)  # all pinned now
    assert code == 0
    assert "5, 5 of them pinned" in again


def test_json(capsys, example):
    code, text, _ = run(capsys, "pack", example, "--json", "--alignment", "8")
    found = json.loads(text)
    assert code == 0
    assert list(found) == ["buffers", "height", "bound", "gap", "optimal", "seconds"]
    assert (found["buffers"], found["height"], found["bound"]) == (5, 24, 24)
    assert found["optimal"] is True
    assert found["gap"] == 0
    assert found["seconds"] >= 0


def test_a_capacity_that_is_too_small(capsys, tmp_path, example):
    out = tmp_path / "out.csv"
    code, text, error = run(capsys, "pack", example, "--capacity", "11", "-o", str(out))
    assert (code, text) == (2, "")
    for part in ("12 bytes are live at time 0", "[0, 9)", "the ids 'b1', 'b3', 'b5'"):
        assert part in error
    assert not out.exists()


def test_pins_that_overlap_are_told_by_their_ids(capsys, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,lower,upper,size,offset\nfirst,0,2,4,0\nsecond,1,3,4,2\n")
    code, _, error = run(capsys, "pack", str(file))
    assert code == 2
    assert "pinned buffers overlap" in error
    assert "the ids 'first', 'second'" in error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--alignment", "0"], "--alignment is a whole number from 1 up, got 0"),
        (["--capacity", "much"], "--capacity is a size such as 7GiB"),
        (["-o", "missing/out.csv"], "cannot save to 'missing/out.csv'"),
    ],
)
def test_wrong_options(capsys, example, arguments, part):
    code, _, error = run(capsys, "pack", example, *arguments)
    assert code == 2
    assert part in error


def test_a_missing_file(capsys, tmp_path):
    code, _, error = run(capsys, "pack", str(tmp_path / "none.csv"))
    assert code == 2
    assert "none.csv" in error
    assert "No such file" in error


def test_a_tight_file(capsys, tmp_path):
    columns = cut_rectangle(80, 50, 1024, 9)
    lines = [f"{i},{a},{b},{s}" for i, (a, b, s) in enumerate(zip(*columns, strict=True))]
    (tmp_path / "in.csv").write_text("\n".join(["id,lower,upper,size", *lines]))
    code, text, _ = run(capsys, "pack", str(tmp_path / "in.csv"), "--capacity", "1KiB", "--json")
    assert code == 0
    assert json.loads(text)["height"] == 1024
