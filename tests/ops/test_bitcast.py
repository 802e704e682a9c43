"""The bytes of a value as another dtype: numbers are the bits that IEEE 754 gives, and nothing that
knows numbers looks through it."""

import struct

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, FeedError


def test_bits_of_floats():
    """The sign, the exponent and the fraction of a float32."""
    x = g.input("x", (3,))
    bits = g.bitcast(x, "int32")
    parts = {"exponent": (bits >> 23) & 255, "back": g.bitcast(bits & 0x7FFFFFFF, "float32")}
    found = g.compile(outputs=parts).step(x=np.array([1.0, -6.5, 0.25], "float32"))
    assert found["exponent"].tolist() == [127, 129, 125]
    assert found["back"].tolist() == [1.0, 6.5, 0.25]


def test_it_is_a_view_also_of_a_view():
    x = g.input("x", (4, 6))
    plan = g.plan(outputs={"y": g.bitcast(g.transpose(g.exp(x))[1:3], "int32") + 1})
    plain = g.plan(outputs={"y": g.transpose(g.exp(x))[1:3] + 1.0})
    assert plan.arena_bytes == plain.arena_bytes


def test_no_gradient_flows():
    x = g.input("x", (3,), "float64")
    back = g.bitcast(g.bitcast(x, "int64"), "float64")
    (dx,) = g.gradient(g.sum(back * x), [x])
    at = np.array([0.5, -1.0, 3.0])
    assert (g.compile(outputs={"dx": dx}).step(x=at)["dx"] == at).all()


def test_numbers_that_are_looked_up_are_those_that_are_read():
    """The bits of a float are no numbers that a fed integer, or what made it, has promised."""
    table, i = g.parameter("t", (4, 2)), g.input("i", (2,), "int64")
    program = g.compile(outputs={"y": g.gather(table, g.cast(g.bitcast(i, "float64"), "int64"))})
    bits = np.array([3.0, 0.0]).view("int64")
    wanted = program.states["t"][[3, 0]]
    np.testing.assert_array_equal(program.step(i=bits)["y"], wanted)
    with pytest.raises(FeedError):
        program.step(i=np.array([4.0, 0.0]).view("int64"))


def test_mixed_precision_keeps_the_width():
    x, w = g.input("x", (2, 3)), g.parameter("w", (3, 4))
    h = x @ w
    bits = g.bitcast(h, "int32")
    program = g.compile(g.mean(h * h), optimizer=g.optim.SGD(0.1), outputs={"bits": bits},
                        precision="bf16")  # fmt: skip
    found = program.step(x=np.ones((2, 3), "float32"))["bits"]
    assert found.dtype == np.int32
    assert not (found & 0xFFFF).any()  # a bfloat16 as float32


def test_an_onnx_file_has_it(tmp_path):
    x = g.input("x", (3,))
    g.onnx.save({"y": g.bitcast(x, "int32")}, tmp_path / "bits.onnx")
    network = g.onnx.load(tmp_path / "bits.onnx")
    given = np.array([1.5, -0.0, np.inf], "float32")
    found = g.compile(outputs=network.outputs).step(x=given)["y"]
    assert found.tolist() == [struct.unpack("<i", struct.pack("<f", n))[0] for n in given]


@pytest.mark.parametrize(
    ("have", "want", "match"),
    [
        ("float32", "int64", "same width"),
        ("uint8", "bool", "0 or 1"),
        ("float16", "uint8", "width"),
    ],
)
def test_impossible_bitcasts_are_refused(have, want, match):
    with pytest.raises(DTypeError, match=match):
        g.bitcast(g.input("x", (2,), have), want)
