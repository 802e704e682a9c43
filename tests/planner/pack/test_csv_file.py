"""MiniMalloc's files: read, written, refused."""

import numpy as np
import pytest

from graphc.errors import PackingError
from graphc.planner.pack.csv_file import read_buffers, write_offsets


def test_columns_in_any_order_and_pins(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("size,id,upper,offset,lower\n8,a,3,,0\n\n 16 ,b b, 4 ,64,-1\n")
    table = read_buffers(str(file))
    assert table.ids == ("a", "b b")
    assert (table.lower, table.upper, table.size) == ((0, -1), (3, 4), (8, 16))
    assert table.pinned == {1: 64}
    out = tmp_path / "out.csv"
    write_offsets(str(out), table, np.array([0, 64]))
    assert out.read_text() == "id,lower,upper,size,offset\na,0,3,8,0\nb b,-1,4,16,64\n"
    assert read_buffers(str(out)).pinned == {0: 0, 1: 64}


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ("ofset", "'ofset'; did you mean offset"),
        ("", "a column has no name"),
        ("note", "'note'; the columns are id, lower"),
    ],
)
def test_unknown_columns_are_errors(tmp_path, column, message):
    file = tmp_path / "in.csv"
    file.write_text(f"id,lower,upper,size,{column}\na,0,3,8,16\n")
    with pytest.raises(PackingError, match=message):
        read_buffers(str(file))


def test_a_header_alone_is_no_buffers(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("id,lower,upper,size\n")
    assert read_buffers(str(file)).ids == ()


HEAD = "id,lower,upper,size\n"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", ["line 1", "lacks id, lower, upper, size"]),
        ("id,lower,size\n", ["line 1", "lacks upper", "'id,lower,size'"]),
        ("id,lower,uper,size\n", ["line 1: unknown column 'uper'; did you mean upper?"]),
        ("color,id,lower,uper,size\n", ["line 1: unknown column 'uper'; did you mean upper?"]),
        (
            "id,lower,upper,size,color\n",
            ["unknown column 'color'; the columns are id, lower, upper, size, offset"],
        ),
        ("id,lower,upper,size,size\n", ["line 1", "must name a column once, got 'size' twice"]),
        (HEAD + "a,0,1\n", ["line 2", "must have 4 cells", "got 3: 'a,0,1'"]),
        (
            HEAD + "a,0,1,2\na,0,1,2\n",
            ["line 3, column id", "must be unique, but line 2 has the same id", "got 'a'"],
        ),
        (HEAD + ",0,1,2\n", ["line 2, column id", "must have an id, got ''"]),
        (
            HEAD + "a,0,1,2\nb,2,2,2\n",
            ["line 3, column upper", "must be above lower, which is 2, got '2'"],
        ),
        (HEAD + "a,0,1,-2\n", ["line 2, column size: the number must be 0 or more", "got '-2'"]),
        (HEAD + "a,0,1,2.5\n", ["line 2, column size", "expected a whole number", "got '2.5'"]),
        (HEAD + "a,zero,1,2\n", ["line 2, column lower", "expected a whole number", "got 'zero'"]),
        (HEAD + "a,0,1,\n", ["line 2, column size", "expected a whole number", "got ''"]),
        (
            HEAD + "a,0,1,99999999999999999999\n",
            ["line 2, column size", "at most 19 digits", "got '99999999999999999999'"],
        ),
        (
            HEAD + "a,0,1,9000000000000000000\n",
            ["line 2, column size", "must be 0 or more and below 2**62"],
        ),
        (HEAD + "a,-4611686018427387904,1,9\n", ["column lower", "above -2**62 and below 2**62"]),
        (HEAD + "a,0,1,\u0661\n", ["column size", "expected a whole number", "got '\u0661'"]),
        ("id,lower,upper,size,offset\na,0,1,2,-3\n", ["column offset", "0 or more", "got '-3'"]),
        (HEAD + 'a,0,1,"2\n', ["line 2", "must be cells", "got 'a,0,1,\"2' (unexpected end"]),
        (HEAD + 'a,0,1,2\nb,0,1,"2"x\n', ["line 3", "must be cells", "got 'b,0,1,\"2\"x'"]),
        (HEAD + "a" * 200_000 + ",0,1,2\n", ["line 2", "131,072 characters", "aaa' and more"]),
        (HEAD + '"a\nb",0,1,2\nc,0,1,x\n', ["line 4, column size", "got 'x'"]),
        (HEAD + "a,0,1," + "9" * 5000 + "\n", ["column size", "999' and more"]),
    ],
)
def test_malformed_files(tmp_path, text, parts):
    file = tmp_path / "in.csv"
    file.write_text(text)
    with pytest.raises(PackingError) as caught:
        read_buffers(str(file))
    for part in ("in.csv", *parts):
        assert part in str(caught.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(PackingError, match="No such file"):
        read_buffers(str(tmp_path / "none.csv"))
    with pytest.raises(PackingError, match="directory"):
        read_buffers(str(tmp_path))
    (tmp_path / "bytes.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PackingError, match="line 1: a file of buffers must be text in UTF-8"):
        read_buffers(str(tmp_path / "bytes.csv"))
    (tmp_path / "latin.csv").write_bytes(HEAD.encode() + "é,0,1,2\n".encode("latin-1"))
    with pytest.raises(PackingError, match=r"line 2: .*must be text in UTF-8, got the bytes e9"):
        read_buffers(str(tmp_path / "latin.csv"))
    with pytest.raises(PackingError, match="null byte"):
        read_buffers("a\0b")


def test_lines_may_end_as_on_any_system(tmp_path):
    text = "\ufeff" + HEAD + 'a,0,3,8\n"b\nc",1,4,16\n'
    tables = []
    for end in ("\n", "\r\n", "\r"):
        (tmp_path / "in.csv").write_bytes(text.replace("\n", end).encode())
        tables.append(read_buffers(str(tmp_path / "in.csv")))
    assert tables[0] == tables[1] == tables[2]
    assert (tables[0].ids, tables[0].size) == (("a", "b\nc"), (8, 16))


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "in.csv").write_text(HEAD + "a,0,1,2\n")
    table = read_buffers(str(tmp_path / "in.csv"))
    (tmp_path / "folder").mkdir()
    for target in ("folder", "missing/out.csv"):
        with pytest.raises(PackingError, match="nothing was written"):
            write_offsets(str(tmp_path / target), table, np.array([0]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "in.csv"]
