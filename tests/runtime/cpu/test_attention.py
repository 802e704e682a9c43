"""Machine code of fused attention and its gradient, against NumPy's kernels in float64."""

import numpy as np
import pytest

import graphc as g
from graphc.codegen import native
from graphc.codegen.llvm import kernel
from graphc.codegen.llvm.attention import product
from graphc.codegen.llvm.families import attention
from graphc.codegen.memo import Memo

SIZES = {
    "one row and one column": (1, 1, 4, 4),
    "one row": (1, 300, 20, 20),
    "less than a vector": (7, 9, 5, 3),
    "a block and one": (33, 257, 16, 16),
    "several blocks": (130, 600, 40, 72),
    "whole blocks": (64, 512, 32, 32),
}
"""Rows, columns, width and value width."""

OPTIONS = {
    "plain": {},
    "causal": {"causal": True},
    "last": {"causal": "last", "key_heads": 1},
    "dropped": {"drop": 0.3, "causal": True},
    "bool mask": {"mask": "bool"},
    "float mask": {"mask": "float", "drop": 0.2, "key_heads": 2},
}


def operands(rows, columns, width, value_width, mask=None, key_heads=4, dtype="float64"):
    """Random feeds of two batch entries with four heads. Every third row of a mask hides all."""
    rng = np.random.default_rng(rows)
    shapes = {
        "q": (2, 4, rows, width),
        "k": (2, key_heads, columns, width),
        "v": (2, key_heads, columns, value_width),
        "dy": (2, 4, rows, value_width),
    }
    feeds = {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}
    if mask:
        shown = (rng.random((2, 1, rows, columns)) < 0.7) & (np.arange(rows)[:, None] % 3 < 2)
        added = np.where(shown, rng.standard_normal(shown.shape), -np.inf).astype(dtype)
        feeds["mask"] = shown if mask == "bool" else added
    return feeds


def program_of(feeds, options, **compiled):
    """A program whose outputs are y and the gradients of q, k and v."""
    values = {n: g.input(n, a.shape, str(a.dtype)) for n, a in feeds.items()}
    q, k, v, dy = (values[name] for name in ("q", "k", "v", "dy"))
    y = g.attention(q, k, v, mask=values.get("mask"), scale=0.3, **options)
    found = zip(("dq", "dk", "dv"), g.gradient(g.sum(y * dy), [q, k, v]), strict=True)
    program = g.compile(outputs={"y": y, **dict(found)}, seed=3, training=True, **compiled)
    assert any(n.op.name == "dropped_attention" for n in program.graph.nodes) == ("drop" in options)
    return program


def results(feeds, options, **compiled):
    found = program_of(feeds, options, **compiled).step(feeds)
    return {name: array.copy() for name, array in found.items()}


PAIRS = [
    pytest.param(sizes, options, marks=[pytest.mark.slow] if (row + column) % 2 else [])
    for row, sizes in enumerate(SIZES)
    for column, options in enumerate(OPTIONS)
]
"""All pairs; the quick ones have each size and each option three times."""


@pytest.mark.parametrize(("sizes", "options"), PAIRS)
def test_float64_is_that_of_numpy(sizes, options):
    own = dict(OPTIONS[options])
    feeds = operands(*SIZES[sizes], own.pop("mask", None), own.pop("key_heads", 4))
    found, expected = (results(feeds, own, kernels=k, poison=True) for k in ("native", "numpy"))
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-10, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_float32_is_close_to_float64(options):
    """With an offset, which makes the sums large and rounding visible."""
    own, sizes = dict(options), SIZES["several blocks"]
    feeds = operands(*sizes, own.pop("mask", None), own.pop("key_heads", 4), "float32")
    feeds |= {name: feeds[name] + np.float32(1) for name in ("v", "dy")}
    wide = {n: a if a.dtype == bool else a.astype(np.float64) for n, a in feeds.items()}
    found, expected = results(feeds, own), results(wide, own, kernels="numpy")
    for name, array in expected.items():
        bound = 24 * np.finfo(np.float32).eps * np.abs(array).max()
        np.testing.assert_allclose(found[name], array, rtol=0, atol=bound, err_msg=name)


def test_the_number_of_threads_changes_no_bit():
    feeds = operands(*SIZES["several blocks"], dtype="float32")
    one, *others = (results(feeds, {"drop": 0.1}, threads=n) for n in (1, 2, 3))
    for other in others:
        assert all(one[name].tobytes() == array.tobytes() for name, array in other.items())


def test_the_number_of_pieces_changes_no_bit(monkeypatch):
    """Pieces divide heads, each of which is computed by the same operations."""
    feeds, found, sizes = operands(40, 70, 16, 16), [], []
    for pieces in (1, 3, 8):
        monkeypatch.setattr(attention, "PIECES", pieces)
        monkeypatch.setattr(native, "_KNOWN", Memo())
        monkeypatch.setattr(native, "_WORKSPACES", Memo())
        program = program_of(feeds, {"drop": 0.1})
        found.append({name: array.tobytes() for name, array in program.step(feeds).items()})
        sizes.append(program.plan.workspace_bytes)
    assert sizes[0] < sizes[1] < sizes[2]
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_registers_of_the_processor_change_no_bit(monkeypatch, dtype):
    feeds, found = operands(45, 70, 40, 24, dtype=dtype), []
    for is_wide in (True, False):
        monkeypatch.setattr(product, "has_wide_registers", lambda is_wide=is_wide: is_wide)
        monkeypatch.setattr(native, "_KNOWN", Memo())
        monkeypatch.setattr(kernel, "_KNOWN", Memo())
        own = program_of(feeds, {"drop": 0.1})
        found.append((own.plan.arena_bytes, {n: a.tobytes() for n, a in own.step(feeds).items()}))
    assert found[0] == found[1]


@pytest.mark.parametrize("causal", [False, True])
def test_nan_reaches_the_rows_that_see_it(causal):
    feeds = operands(40, 40, 8, 8, dtype="float32")
    feeds["k"][1, 2, 20] = np.nan
    y = results(feeds, {"causal": causal})["y"]
    wrong = np.isnan(y).all(-1)
    assert wrong[1, 2, 20 if causal else 0 :].all()
    assert np.isnan(y).any(-1).sum() == wrong.sum() == (20 if causal else 40)


@pytest.mark.parametrize("length", [512, 1024, 2048])
def test_the_workspace_does_not_grow_with_the_square_of_the_length(length):
    """It has numbers for rows, and tiles of a fixed size."""
    feeds = operands(length, length, 64, 64, dtype="float32")
    program = program_of(feeds, {})
    assert program.plan.workspace_bytes < 8 * 2**20 + 64 * length
