"""Maps along axes, as users call them: resizing several axes, padding, tiles and long tables."""

from dataclasses import replace

import numpy as np
import pytest
from ops.samples.axis_maps import resized

import graphc as g
from graphc.codegen.families.axis_map import segments_of
from graphc.codegen.lowering import calls_of
from graphc.codegen.text.operands import in_one_piece
from graphc.devices.device import CPU
from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.memory.allocate import Allocation
from graphc.ops.resize import ResizeAttributes
from graphc.target import target_of

RNG = np.random.default_rng(0)


def run(outputs, feeds):
    return g.compile(outputs={"y": outputs}, poison=True).step(feeds)["y"]


@pytest.mark.parametrize("form", ["linear", "cubic"])
def test_axes_are_resized_one_after_another(form):
    x = g.input("x", (2, 7, 4), "float64")
    y = g.resize(x, scales=(1.0, 0.6, 1.7), form=form, coordinates="align_corners")
    given = RNG.standard_normal(x.shape)
    wanted = given
    for axis, extent, scale in ((1, 4, 0.6), (2, 6, 1.7)):
        wanted = resized(wanted, ResizeAttributes(axis, extent, scale, form, "align_corners"))
    np.testing.assert_allclose(run(y, {"x": given}), wanted, rtol=1e-12, atol=1e-14)
    assert [n.op.name for n in g.plan(outputs=[y]).graph.nodes] == ["resize_axis"] * 2


def test_a_region_beyond_any_axis_is_the_value():
    x = g.input("x", (4, 5), "float64")
    y = g.resize(
        x, (6, 5), form="linear", coordinates="tf_crop_and_resize",
        region=((-0.2, 0.9), (0.5, 1.5)), value=9.0,
    )  # fmt: skip
    found = run(y, {"x": RNG.uniform(size=x.shape)})
    rows = np.linspace(-0.2, 0.9, 6) * 3
    columns = np.linspace(0.5, 1.5, 5) * 4
    outside = ((rows < 0) | (rows > 3))[:, None] | ((columns < 0) | (columns > 4))
    np.testing.assert_array_equal(np.isclose(found, 9.0, rtol=1e-14), outside)


@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool", "float16", "bfloat16"])
def test_elements_of_any_dtype_are_repeated_to_the_bit(dtype):
    x = g.input("x", (3, 4), dtype)
    given = RNG.integers(0, 2, (3, 4)).astype(x.type.dtype.numpy)
    wide = run(g.resize(x, (6, 4)), {"x": given})
    np.testing.assert_array_equal(wide, given.repeat(2, 0), strict=True)
    around = run(g.pad(x, ((1, 2), (0, 3)), "reflect"), {"x": given})
    np.testing.assert_array_equal(around, np.pad(given, ((1, 2), (0, 3)), "reflect"), strict=True)
    shifted = run(g.pad(x, ((-1, 1), (2, 0)), "edge"), {"x": given})
    wanted = np.pad(given[1:], ((0, 1), (2, 0)), "edge")
    np.testing.assert_array_equal(shifted, wanted, strict=True)


@pytest.mark.parametrize("limit", [1, 100, 2000])
def test_tiles_change_no_bit(limit):
    x = g.input("x", (3, 9, 5), "float64")
    y = g.resize(x, (3, 13, 4), form="cubic", antialias=True)
    given = RNG.standard_normal(x.shape)
    graph = g.plan(outputs={"y": y}).graph
    plan = Allocation(graph, target_of(replace(CPU, workspace_limit_bytes=limit))).plan("packed")
    line = 5 * 8
    assert plan.workspace_bytes <= max(limit, line) + 256
    np.testing.assert_array_equal(
        g.Program(plan, poison=True).step(x=given)["y"], run(y, {"x": given})
    )


def test_the_table_of_a_long_edge_is_short():
    """A kernel's text does not grow with an axis where its table is regular."""
    x = g.input("x", (2, 100_000))
    for mode in ("reflect", "edge", "wrap"):
        node = g.pad(x, ((0, 0), (300, 500)), mode).node
        (dx,) = g.gradient(g.sum(node.output * node.output), [x])
        assert len(segments_of(node.op.table(node))) == 3
        assert len(segments_of(dx.node.op.table(dx.node))) <= 5


def wide(extent):
    """A value whose last axis is long, and which holds no bytes."""
    return g.input("wide", (1, extent))


def slope(x):
    return g.gradient(g.sum(g.resize(x, (1, 2))), [x])


@pytest.mark.parametrize(
    "build",
    [
        lambda: g.resize(wide(4), (1, 2**25 + 1), form="linear"),
        lambda: g.resize(wide(4), (1, 2**24 + 1), form="cubic"),
        lambda: g.resize(wide(2**26), (1, 2**22), form="linear", antialias=True),
        lambda: g.resize(wide(4), scales=(1.0, 1e8)),
        lambda: g.pad(wide(4), ((0, 0), (0, 2**26)), "edge"),
        lambda: slope(wide(2**26 + 1)),
    ],
)
def test_a_table_that_would_fill_memory_is_refused_before_it_is_made(build, monkeypatch):
    monkeypatch.setattr("graphc.ops.axis_map._tabled", None)
    message = f"must have at most {2**26} numbers.*join .*graphc.concat"
    with pytest.raises(ShapeError, match=message):
        build()


def test_a_table_at_the_limit_is_none_too_many():
    assert g.resize(wide(4), (1, 2**25), form="linear").shape == (1, 2**25)
    assert g.pad(wide(4), ((0, 0), (0, 2**26 - 4)), "edge").shape == (1, 2**26)


def test_an_axis_may_be_mapped_in_parts():
    """What the error of a table that is too large says to do."""
    x, given = g.input("x", (7,), "float64"), RNG.standard_normal(7)
    for mode in ("edge", "reflect"):
        ends = g.pad(x[:3], ((2, 0),), mode), x[3:5], g.pad(x[5:], ((0, 1),), mode)
        np.testing.assert_array_equal(
            run(g.concat(ends), {"x": given}), np.pad(given, (2, 1), mode)
        )
    for form in ("linear", "cubic"):
        whole = g.resize(x, (13,), form=form, coordinates="align_corners")
        parts = [
            g.resize(x, (last - first + 1,), form=form, coordinates="tf_crop_and_resize",
                     region=[(first / 12, last / 12)])
            for first, last in ((0, 4), (5, 12))
        ]  # fmt: skip
        found = g.compile(outputs={"whole": whole, "parts": g.concat(parts)}).step(x=given)
        np.testing.assert_allclose(found["parts"], found["whole"], rtol=1e-12, atol=1e-13)


def test_a_gpus_tables_are_shorter(monkeypatch):
    monkeypatch.setattr("graphc.codegen.families.axis_map.MOST_TAPS", 8)
    x = g.input("x", (5,))
    most, more = (g.pad(x, ((before, 3),), "edge").node for before in (0, 1))
    assert calls_of(most, {v: in_one_piece(v.type) for v in (x, most.output)}).kernels
    with pytest.raises(ShapeError, match=r"on a GPU, .*at most 8 elements.*graphc\.concat"):
        calls_of(more, {v: in_one_piece(v.type) for v in (x, more.output)})


@pytest.mark.slow
def test_long_axes_are_mapped():
    x, given = g.input("x", (17_000_000,)), RNG.standard_normal(17_000_000).astype(np.float32)
    found = run(g.pad(x, ((2, 3),), "reflect"), {"x": given})
    np.testing.assert_array_equal(found, np.pad(given, (2, 3), "reflect"))
    count, length, a = 6_000_000, 5_000_000, -0.75
    signal = given[:count].astype(np.float64)
    y = g.resize(g.input("x", (count,), "float64"), (length,), form="cubic")
    found, some = run(y, {"x": signal}), RNG.integers(10, length - 10, 1000)
    centres = (some + 0.5) * count / length - 0.5
    wanted = np.zeros(1000)
    for tap in range(-1, 3):
        d = np.abs(np.floor(centres) + tap - centres)
        near, far = (a + 2) * d**3 - (a + 3) * d**2 + 1, a * (d**3 - 5 * d**2 + 8 * d - 4)
        wanted += np.where(d <= 1, near, far) * signal[np.floor(centres).astype(int) + tap]
    np.testing.assert_allclose(found[some], wanted, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize(
    ("build", "error"),
    [
        (lambda x, i: g.resize(x), OptionError),
        (lambda x, i: g.resize(x, (2, 2), (1.0, 1.0)), ShapeError),
        (lambda x, i: g.resize(x, (2,)), ShapeError),
        (lambda x, i: g.resize(x, (2, 0)), OptionError),
        (lambda x, i: g.resize(x, scales=(1.0, 0.1)), ShapeError),
        (lambda x, i: g.resize(x, scales=(1.0, -1.0)), OptionError),
        (lambda x, i: g.resize(x, scales=(1.0, "2")), OptionError),
        (lambda x, i: g.resize(x, (2, 2), form="bilinear"), OptionError),
        (lambda x, i: g.resize(x, (4, 6), form="bilinear"), OptionError),
        (lambda x, i: g.resize(x, (2, 2), coordinates="corners"), OptionError),
        (lambda x, i: g.resize(x, (2, 2), rounding="even"), OptionError),
        (lambda x, i: g.resize(x, (2, 2), region=((0.0, 1.0),)), ShapeError),
        (lambda x, i: g.resize(x, (2, 2), region=(0.0, 1.0)), OptionError),
        (lambda x, i: g.resize(i, (2, 2), form="linear"), DTypeError),
        (lambda x, i: g.pad(x, ((1, 1), (0, 0)), "symmetric"), OptionError),
    ],
)
def test_operands_that_do_not_fit_are_refused(build, error):
    with pytest.raises(error):
        build(g.input("x", (4, 6)), g.input("i", (4, 6), "int32"))
