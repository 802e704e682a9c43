"""graphc pack: from a file to a file, and its messages."""

import csv
import json
import re

import pytest
from buffer_families import cut_rectangle
from cli.running import run
from properties.lifetimes import overlaps
from properties.small_packings import LEVEL, level_columns

from graphc.planner.pack import THOROUGH, phases
from graphc.progress import heard_by

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
    assert "height     12 bytes = 12 B, proven minimal" in text
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
    assert list(found) == [
        "buffers",
        "height",
        "bound",
        "gap",
        "optimal",
        "seconds",
        "proven",
        "effort",
        "work",
    ]
    assert (found["buffers"], found["height"], found["bound"]) == (5, 24, 24)
    assert found["optimal"] is True
    assert found["gap"] == 0
    assert found["seconds"] >= 0


def test_a_capacity_that_is_too_small(capsys, tmp_path, example):
    out = tmp_path / "out.csv"
    code, text, error = run(capsys, "pack", example, "--capacity", "11", "-o", str(out))
    assert (code, text) == (3, "")
    told = "at time 0 are buffer 'b1' (4 bytes), buffer 'b3' (4 bytes), buffer 'b5' (4 bytes)."
    for part in ("12 bytes are live at time 0", "[0, 9)", told):
        assert part in error
    assert not out.exists()


def test_a_capacity_that_is_too_small_as_json(capsys, example):
    code, text, error = run(capsys, "pack", example, "--capacity", "11", "--json")
    found = json.loads(text)
    assert (code, error) == (3, "")
    assert "no packing fits into 11 bytes" in found.pop("error")
    assert found == {
        "capacity": 11, "height": 12, "bound": 12, "times": [[0, 9]], "buffers": [0, 2, 4],
    }  # fmt: skip


def test_errors_name_overlapping_pins(capsys, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,lower,upper,size,offset\nfirst,0,2,4,0\nsecond,1,3,4,2\n")
    code, _, error = run(capsys, "pack", str(file))
    assert code == 2
    assert "pinned buffers overlap: buffer 'first', live [0, 2) at bytes [0, 4) and " in error
    assert "buffer 'second', live [1, 3) at bytes [2, 6)" in error


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--effort", "-1"], "--effort must be an integer of at least 0, got -1"),
        (["--alignment", "0"], "--alignment must be an integer of at least 1, got 0"),
        (["--capacity", "much"], "--capacity must be a size such as 7GiB"),
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


@pytest.fixture
def level(tmp_path):
    """Buffers that no search is done with soon."""
    columns = level_columns(0)
    lines = [f"b{i},{a},{b},{s}" for i, (a, b, s) in enumerate(zip(*columns, strict=True))]
    (tmp_path / "level.csv").write_text("\n".join(["id,lower,upper,size", *lines]))
    return str(tmp_path / "level.csv")


def test_effort_bounds_the_search_and_the_result_says_where_it_ended(capsys, level):
    heights = []
    for effort in (0, 10**5, 10**6, 10**7):
        code, text, _ = run(capsys, "pack", level, "--effort", str(effort))
        assert code == 0
        height = re.search(r"height +([\d,]+) bytes = .*, (.*)", text)
        heights.append(int(height[1].replace(",", "")))
        assert height[2] == (f"not proven minimal: the search ended at the effort of {effort}")
        found = json.loads(run(capsys, "pack", level, "--effort", str(effort), "--json")[1])
        assert (found["effort"], found["height"], found["optimal"]) == (effort, heights[-1], False)
        assert effort <= found["work"] <= 1.2 * effort + 10**6
        assert found["bound"] <= found["proven"] < found["height"]
    assert sorted(heights, reverse=True) == heights
    assert len(set(heights)) > 2


def test_the_default_effort_is_that_of_the_package(capsys, example):
    found = json.loads(run(capsys, "pack", example, "--json")[1])
    assert found["effort"] == THOROUGH == 2 * 10**10


def test_a_height_above_the_bound_is_told_with_what_is_proven(capsys, tmp_path):
    lines = [f"b{i},{a},{a + d},{s}" for i, (a, d, s) in enumerate(LEVEL)]
    (tmp_path / "in.csv").write_text("\n".join(["id,lower,upper,size", *lines]))
    text = run(capsys, "pack", str(tmp_path / "in.csv"))[1]
    assert "height     12 bytes = 12 B, proven minimal" in text
    assert "bound      11 bytes = 11 B" in text
    assert "proven     at least 12 bytes = 12 B" in text


def test_an_ended_search_is_reported(capsys, monkeypatch, level):
    monkeypatch.setattr(phases, "ORDER_LIMIT", 10)
    monkeypatch.setattr(phases, "SEARCH_LIMIT", 10)
    with open(level) as file:
        header, *lines = file.read().split("\n")
    with open(level, "w") as file:
        offsets = ["0", *[""] * (len(lines) - 1)]
        rows = [f"{line},{offset}" for line, offset in zip(lines, offsets, strict=True)]
        file.write("\n".join([f"{header},offset", *rows]))
    text = run(capsys, "pack", level)[1]
    assert "not proven minimal: problems with this many buffers are not searched further" in text


def test_a_command_that_packs_reports_what_it_does(capsys, monkeypatch, level):
    monkeypatch.setattr(phases, "REPORTED", 10**6)
    heard: list[str] = []
    with heard_by(heard.append):
        run(capsys, "pack", level, "--effort", "10000000")
    assert heard[0] == "packing 49 buffers"
    assert len(heard) > 2
    assert all(line.startswith("packing 49 buffers: ") for line in heard[1:])


def test_messages_have_ids_and_no_positions(capsys, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,lower,upper,size,offset\nfirst,0,2,4,\nsecond,1,3,4,2\n")
    code, _, error = run(capsys, "pack", str(file), "--alignment", "4")
    assert code == 2
    assert "pinned buffer 'second' must start at a multiple of the alignment 4, got 2" in error
    code, _, error = run(capsys, "pack", str(file), "--capacity", "5")
    assert code == 3
    assert "buffer 'first'" in error
    assert not re.search(r"buffer \d|counted from", error)
