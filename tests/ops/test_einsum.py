"""Einstein's notation against NumPy's."""

import numpy as np
import pytest
from ops.test_every_op import check_gradient, weighted_sum

import graphc as g
from graphc.errors import DTypeError, OptionError, ShapeError
from graphc.ir.ancestors import ancestors

RNG = np.random.default_rng(4)
EXTENTS = dict(zip("abcdijklmn", (2, 3, 2, 3, 4, 3, 5, 2, 3, 2), strict=True))

LETTERS = (
    "ij,jk->ik", "ij,jk", "ij->ji", "ii->i", "ii", "ij->", "ij->j", "bij,bjk->bik", "bij,jk->bik",
    "ijk,ilm,njm,nlk->", "abc,cd,ad->bd", "i,j->ij", "ij,ij->ij", "ij,ij", "aabb->ab", "iji->j",
    "iijjii->ji", "abij,cbjk->acik", "ab,ab,c->c", "i,i", "ji,jk", "cba", "ijk,ijl->kl",
    "aij,ajk,akl->ail", "ji,kj->ki",
)  # fmt: skip
ELLIPSES = (
    ("...ij,...jk->...ik", (2, 1, 3, 4), (5, 4, 2)), ("...i,i...->...", (2, 3, 4), (4, 3)),
    ("i...->i...", (2, 3)), ("...,...", (2, 3), (3,)), ("b...a,...->...ba", (2, 3, 4), ()),
    ("...ii->...i", (2, 3, 3)), ("...ij,jk->ik", (2, 3), (3, 4)), ("ij,ij", (1, 3), (2, 3)),
    ("ij,jk->ik", (2, 1), (3, 4)),
    (" i j , jk -> k i ", (2, 3), (3, 4)), ("...a->a", (3,)),
)  # fmt: skip
CASES = [
    *((s, *(tuple(EXTENTS[c] for c in term) for term in s.split("->")[0].split(",")))
      for s in LETTERS),
    *ELLIPSES,
]  # fmt: skip


def drawn(shapes, dtype="float64"):
    arrays = [RNG.uniform(1, 9, shape).astype(dtype) for shape in shapes]
    inputs = [g.input(f"x{i}", a.shape, dtype) for i, a in enumerate(arrays)]
    return inputs, {x.name: a for x, a in zip(inputs, arrays, strict=True)}


@pytest.mark.parametrize(("subscripts", "shapes"), [(s, shapes) for s, *shapes in CASES])
def test_einsum_is_numpys(subscripts, shapes):
    for dtype in ("float64", "int64"):
        inputs, feeds = drawn(shapes, dtype)
        found = g.compile(outputs={"y": g.einsum(subscripts, *inputs)}).step(feeds)["y"]
        wanted = np.einsum(subscripts, *feeds.values())
        assert found.shape == wanted.shape
        np.testing.assert_allclose(found, wanted, rtol=1e-13 * (dtype == "float64"))


def test_lists_of_numbers_are_labels():
    (a, b), feeds = drawn([(2, 3, 4), (4, 3)])
    outputs = {
        "given": g.einsum(a, [0, 1, 2], b, [2, 1], [1, 0]),
        "implied": g.einsum(a, [..., 51, 27], b, [27, 51]),
    }
    found = g.compile(outputs=outputs).step(feeds)
    np.testing.assert_allclose(found["given"], np.einsum("abc,cb->ba", *feeds.values()))
    np.testing.assert_allclose(found["implied"], np.einsum("...ab,ba", *feeds.values()))


def test_large_products_are_matrix_products():
    """Attention's two products and a chain of three matrices; nothing is multiplied and summed."""
    q, k, v = (g.input(name, (2, 4, 64, 16)) for name in "qkv")
    scores = g.einsum("bhqd,bhkd->bhqk", q, k)
    y = g.einsum("bhqk,bhkd->bqhd", scores, v)
    narrow, wide = g.input("narrow", (64, 2)), g.input("wide", (2, 64))
    chain = g.einsum("ab,bc,cd->ad", narrow, wide, narrow)
    names = [node.op.name for node in ancestors([y, chain])]
    assert set(names) <= {"matmul", "transpose", "reshape"}
    assert names.count("matmul") == 4
    assert not {n.op.name for n in ancestors([scores])} - {"matmul"}  # as they lie
    shapes = [n.output.shape for n in ancestors([chain]) if n.op.name == "matmul"]
    assert (2, 2) in shapes  # the cheap product comes first


def test_gradients():
    (a, b, c), feeds = drawn([(2, 3, 3), (3, 4), (4,)])
    y = g.einsum("bii,ij,j->bi", a, b, c)
    check_gradient(weighted_sum([y], "weight"), [a, b, c], feeds, tolerance=1e-7)


@pytest.mark.parametrize(
    ("subscripts", "error", "message"),
    [
        ("ij,jk->iz", OptionError, "must use labels of the terms"),
        ("ij,jk->ii", OptionError, "each at most once"),
        ("i1,jk", OptionError, "not a valid term"),
        ("ij..,jk", OptionError, "not a valid term"),
        ("ij", OptionError, "1 terms for 2"),
        ("ijk,jk", ShapeError, "one letter per axis"),
        ("i,jk", ShapeError, "one letter per axis"),
        ("i...,jk->k", OptionError, "the ellipsis"),
        ("ij,ik", ShapeError, "two extents, 2 and 3"),
    ],
)
def test_malformed_notation_is_refused(subscripts, error, message):
    (a, b), _ = drawn([(2, 3), (3, 4)])
    with pytest.raises(error, match=message):
        g.einsum(subscripts, a, b)


def test_operands_are_of_one_dtype_and_there():
    a, b = g.input("a", (3, 3)), g.input("b", (3, 3), "bool")
    for given, error in (
        (("ij,jk", a, b), DTypeError), (("ij", b), DTypeError), (("ij",), OptionError),
        (("ij", 3.0), OptionError), ((a, [0, 52]), OptionError), ((a, "ij"), OptionError),
        ((), OptionError),
    ):  # fmt: skip
        with pytest.raises(error):
            g.einsum(*given)
