"""MiniMalloc's files: read, written, refused."""

import numpy as np
import pytest

from graphc.errors import PackingError
from graphc.packing.csv_file import read_buffers, write_offsets


def test_columns_in_any_order_and_pins(tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("size,note,id,upper,offset,lower\n8,x,a,3,,0\n\n 16 ,,b b, 4 ,64,-1\n")
    table = read_buffers(str(file))
    assert table.ids == ("a", "b b")
    assert (table.lower, table.upper, table.size) == ((0, -1), (3, 4), (8, 16))
    assert table.pinned == {1: 64}
    out = tmp_path / "out.csv"
    write_offsets(str(out), table, np.array([0, 64]))
    assert out.read_text() == "id,lower,upper,size,offset\na,0,3,8,0\nb b,-1,4,16,64\n"
    assert read_buffers(str(out)).pinned == {0: 0, 1: 64}


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
        ("id,lower,upper,size,size\n", ["'size' stands there twice"]),
        (HEAD + "a,0,1\n", ["line 2", "4 cells", "'a,0,1'"]),
        (HEAD + "a,0,1,2\na,0,1,2\n", ["line 3, column id", "line 2 has this one", "'a'"]),
        (HEAD + ",0,1,2\n", ["line 2, column id", "has an id"]),
        (HEAD + "a,0,1,2\nb,2,2,2\n", ["line 3, column upper", "lower, which is 2", "'2'"]),
        (HEAD + "a,0,1,-2\n", ["line 2, column size", "'-2'"]),
        (HEAD + "a,0,1,2.5\n", ["line 2, column size", "whole number", "'2.5'"]),
        (HEAD + "a,zero,1,2\n", ["line 2, column lower", "'zero'"]),
        (HEAD + "a,0,1,\n", ["line 2, column size", "''"]),
        (HEAD + "a,0,1,99999999999999999999\n", ["column size", "19 digits"]),
        (HEAD + "a,0,1,9000000000000000000\n", ["column size", "2**62"]),
        ("id,lower,upper,size,offset\na,0,1,2,-3\n", ["column offset", "'-3'"]),
        (HEAD + 'a,0,1,"2\n', ["cannot be read as CSV"]),
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
    with pytest.raises(PackingError, match="UTF-8"):
        read_buffers(str(tmp_path / "bytes.csv"))


def test_nothing_is_left_of_a_file_that_cannot_be_written(tmp_path):
    (tmp_path / "in.csv").write_text(HEAD + "a,0,1,2\n")
    table = read_buffers(str(tmp_path / "in.csv"))
    (tmp_path / "folder").mkdir()
    for target in ("folder", "missing/out.csv"):
        with pytest.raises(PackingError, match="nothing was written"):
            write_offsets(str(tmp_path / target), table, np.array([0]))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "in.csv"]
