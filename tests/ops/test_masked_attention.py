"""Attention with masks, shared keys and both ways of aligning rows, against its formula."""

import numpy as np
import pytest

import graphc as g
from graphc.errors import DTypeError, OptionError, ShapeError

RNG = np.random.default_rng(2)


def seen_by(mask, causal, rows, columns):
    """What is added to scores: 0 or the mask's numbers, and -inf for what a row does not see."""
    added = np.zeros((rows, columns))
    if causal:
        last = np.arange(rows)[:, None] + (0 if causal == "first" else columns - rows)
        added = np.where(np.arange(columns) <= last, 0.0, -np.inf)
    if mask is None:
        return added
    return added + (np.where(mask, 0, -np.inf) if mask.dtype == bool else mask)


def formula(q, k, v, weight, mask=None, causal=False):
    """The sum of weight · attention, and its gradients; rows that see nothing are 0."""
    shared = q.shape[-3] // k.shape[-3]
    wide_k, wide_v = k.repeat(shared, -3), v.repeat(shared, -3)
    scale = 1 / np.sqrt(q.shape[-1])
    scores = q @ wide_k.swapaxes(-1, -2) * scale
    scores = scores + seen_by(mask, causal, *scores.shape[-2:])
    peak = scores.max(-1, keepdims=True)
    p = np.exp(scores - np.where(np.isfinite(peak), peak, 0))
    p /= np.where(p.any(-1, keepdims=True), p.sum(-1, keepdims=True), 1)
    dp = weight @ wide_v.swapaxes(-1, -2)
    slopes = p * (dp - (p * dp).sum(-1, keepdims=True))
    parts = (*k.shape[:-3], k.shape[-3], shared)
    dk, dv = (
        s.reshape(*parts, *s.shape[-2:]).sum(-3)
        for s in (slopes.swapaxes(-1, -2) @ q * scale, p.swapaxes(-1, -2) @ weight)
    )
    y = p @ wide_v
    return {"y": y, "q": slopes @ wide_k * scale, "k": dk, "v": dv, "mask": slopes}


def run(form, feeds, causal=False, dtype="float64"):
    """Return the results of `formula` by graphc, with the gradient of a float mask."""
    values = {
        name: g.input(name, array.shape, "bool" if array.dtype == bool else dtype)
        for name, array in feeds.items()
    }
    q, k, v, weight = (values[name] for name in ("q", "k", "v", "weight"))
    mask = values.get("mask")
    y = g.attention(q, k, v, causal, form=form, mask=mask)
    wrt = [q, k, v]
    if mask is not None and mask.type.dtype.name == dtype:
        wrt.append(mask)
    slopes = g.gradient(g.sum(y * weight), wrt)
    named = {"y": y} | {x.name: dx for x, dx in zip(wrt, slopes, strict=True)}
    finite = all(np.isfinite(array).all() for array in feeds.values())
    program = g.compile(outputs=named, training=True, poison=True, check_finite=finite)
    cast = {n: a if a.dtype == bool else a.astype(dtype) for n, a in feeds.items()}
    return program.step({x.name: cast[x.name] for x in program.graph.inputs})


def drawn(leading=(2, 4), rows=5, columns=7, key_heads=None):
    shared = leading if key_heads is None else (*leading[:-1], key_heads)
    shapes = {
        "q": (*leading, rows, 3), "k": (*shared, columns, 3), "v": (*shared, columns, 2),
        "weight": (*leading, rows, 2),
    }  # fmt: skip
    return {name: RNG.standard_normal(shape) for name, shape in shapes.items()}


def check(found, feeds, causal=False):
    expected = formula(**feeds, causal=causal)
    if "mask" in feeds:
        shape = feeds["mask"].shape
        extra = expected["mask"].ndim - len(shape)
        summed = expected["mask"].sum(tuple(range(extra)))
        axes = tuple(i for i, n in enumerate(shape) if n == 1)
        expected["mask"] = summed.sum(axes, keepdims=True)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)


both_forms = pytest.mark.parametrize("form", ["composed", "fused"])


def masks():
    """Masks of scores (2, 4, 5, 7) by name; two have a row that sees nothing."""
    padding = np.arange(7) < np.array([4, 7])[:, None]
    some = RNG.random((2, 4, 5, 7)) > 0.4
    some[1, 2, 3] = False
    hidden = np.where(some, RNG.standard_normal(some.shape), -np.inf)
    return {
        "padding": padding[:, None, None, :], "rows and columns": some[0, 0], "all": some,
        "added": RNG.standard_normal((4, 5, 7)), "added, some hidden": hidden,
        "a head's": RNG.standard_normal((4, 1, 1)), "nothing": np.zeros((1, 1), bool),
    }  # fmt: skip


MASKS = masks()


@both_forms
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", MASKS)
def test_masks(name, causal, form):
    feeds = drawn() | {"mask": MASKS[name]}
    check(run(form, feeds, causal), feeds, causal)


@both_forms
@pytest.mark.parametrize("causal", ["first", "last", True])
@pytest.mark.parametrize(("rows", "columns"), [(5, 5), (3, 7), (7, 3), (150, 140)])
def test_causal_rows_see_columns_by_their_offset(rows, columns, causal, form):
    feeds = drawn((1, 2), rows, columns)
    if rows > columns and causal != "first":
        with pytest.raises(ShapeError, match="at least as many columns as rows"):
            run(form, feeds, causal)
        return
    check(run(form, feeds, causal), feeds, causal)


@both_forms
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("leading", "key_heads"), [((2, 6), 2), ((2, 6), 1), ((3, 2, 4), 2)])
def test_heads_share_keys(leading, key_heads, causal, form):
    feeds = drawn(leading, 130, 131, key_heads)
    check(run(form, feeds, causal), feeds, causal)


@both_forms
def test_a_mask_and_shared_keys(form):
    feeds = drawn((2, 4), key_heads=2) | {"mask": MASKS["all"]}
    check(run(form, feeds, "first"), feeds, "first")


@both_forms
def test_masks_of_float32(form):
    feeds = drawn() | {"mask": MASKS["all"]}
    found = run(form, feeds, dtype="float32")
    expected = formula(**feeds)
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-4, atol=1e-5)


@both_forms
def test_a_cache_of_keys_continues_a_sequence(form):
    """Rows computed one by one on joined keys are those of the whole sequence."""
    whole = drawn((1, 2), 6, 6)
    expected = formula(**whole, causal=True)["y"]
    for row in range(6):
        q = g.input("q", (1, 2, 1, 3), "float64")
        past = [
            g.input(f"past_{n}", (1, 2, max(row, 1), w), "float64") for n, w in (("k", 3), ("v", 2))
        ]
        new = [g.input(f"new_{n}", (1, 2, 1, w), "float64") for n, w in (("k", 3), ("v", 2))]
        k, v = (g.concat([p, n], 2) if row else n for p, n in zip(past, new, strict=True))
        y = g.attention(q, k, v, causal="last", form=form)
        feeds = {"q": whole["q"][:, :, row : row + 1]}
        for name in "kv":
            feeds[f"new_{name}"] = whole[name][:, :, row : row + 1]
            feeds |= {f"past_{name}": whole[name][:, :, :row]} if row else {}
        found = g.compile(outputs={"y": y}).step(feeds)["y"]
        np.testing.assert_allclose(found, expected[:, :, row : row + 1], rtol=1e-12)


def test_fused_attention_keeps_no_scores():
    n = 512
    q, k, v = (g.parameter(name, (1, 2, n, 4), initial=g.Initial("normal", 1.0)) for name in "qkv")
    mask = g.input("mask", (1, 1, 1, n), "bool")
    loss = g.mean(g.attention(q, k, v, True, form="fused", mask=mask))
    plan = g.plan(loss, optimizer=g.optim.SGD())
    assert max(b.bytes for b in plan.buffers if b.kind != "workspace") < 4 * n * n


@pytest.mark.parametrize(("form", "precision"), [("composed", "bf16"), ("fused", "fp16")])
def test_mixed_precision_takes_masks(form, precision):
    q, k, v = (g.linear(g.input(f"x{n}", (1, 2, 4, 3)), 8, name=n) for n in "qkv")
    mask = g.input("mask", (4, 4))
    loss = g.mean(g.attention(q, k, v, form=form, mask=mask))
    program = g.compile(loss, optimizer=g.optim.SGD(), precision=precision)
    feeds = {x.name: np.ones(x.shape, np.float32) for x in program.graph.inputs if x.shape}
    feeds["mask"] = np.where(np.tri(4, dtype=bool), 0, -np.inf).astype(np.float32)
    assert np.isfinite(program.step(feeds)["loss"])


# --- heads of a projection ---


def by_hand(q, k, v, heads, key_heads, bias, **options):
    """Attention of projections, head by head."""
    widths = np.cumsum([part.shape[2] for part in (q, k, v)])[:-1]
    parts = [part + own for part, own in zip((q, k, v), np.split(bias, widths), strict=True)]
    q, k, v = (
        p.reshape(*p.shape[:2], n, -1).swapaxes(1, 2)
        for p, n in zip(parts, (heads, key_heads, key_heads), strict=True)
    )
    y = formula(q, k, v, np.zeros((*q.shape[:3], v.shape[3])), **options)["y"]
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


@both_forms
@pytest.mark.parametrize("key_heads", [4, 2, 1])
def test_queries_keys_and_values_of_one_projection(key_heads, form):
    qkv = RNG.standard_normal((2, 5, (4 + 2 * key_heads) * 3))
    bias, mask = RNG.standard_normal(qkv.shape[2]), np.arange(5) < np.array([3, 5])[:, None]
    mask = mask[:, None, None, :]
    y = g.multi_head_attention(
        g.input("qkv", qkv.shape, "float64"), 4, causal=True, form=form, key_heads=key_heads,
        mask=g.input("mask", mask.shape, "bool"), bias=g.input("bias", bias.shape, "float64"),
    )  # fmt: skip
    found = g.compile(outputs={"y": y}).step(qkv=qkv, mask=mask, bias=bias)["y"]
    parts = np.split(qkv, [12, 12 + 3 * key_heads], axis=2)
    expected = by_hand(*parts, 4, key_heads, bias, mask=mask, causal=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@both_forms
def test_queries_beside_keys_and_values(form):
    shapes = {"q": (2, 3, 12), "k": (2, 6, 6), "v": (2, 6, 4), "bias": (22,)}
    feeds = {name: RNG.standard_normal(shape) for name, shape in shapes.items()}
    q, k, v, bias = (g.input(name, shape, "float64") for name, shape in shapes.items())
    y = g.multi_head_attention(q, 4, True, form=form, keys=k, values=v, key_heads=2, bias=bias)
    found = g.compile(outputs={"y": y}).step(feeds)["y"]
    expected = by_hand(**feeds, heads=4, key_heads=2, causal=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# --- what does not fit ---

X = g.input("x", (2, 3, 4))
QKV = g.input("qkv", (2, 3, 12))


@pytest.mark.parametrize(
    ("build", "error", "match"),
    [
        (lambda: g.attention(X, X, X, "middle"), OptionError, "first, last"),
        (lambda: g.attention(X, X, X, mask=g.input("m", (5,))), ShapeError, "broadcast"),
        (
            lambda: g.attention(X, X, X, mask=g.input("m", (5,)), form="fused"),
            ShapeError, "broadcast",
        ),
        (
            lambda: g.attention(X, X, X, mask=g.input("m", (3,), "int32")),
            DTypeError, "mask must be bool",
        ),
        (
            lambda: g.attention(X, X, X, mask=g.input("m", (3,), "int32"), form="fused"),
            DTypeError, "mask must be bool",
        ),
        (
            lambda: g.attention(g.input("q", (5, 3, 4)), X, X), ShapeError, "equal heads",
        ),
        (lambda: g.multi_head_attention(QKV, 4, key_heads=3), ShapeError, "key_heads must divide"),
        (lambda: g.multi_head_attention(QKV, 3, keys=X), OptionError, "must be given together"),
        (
            lambda: g.multi_head_attention(QKV, 2, bias=g.input("b", (4,))), ShapeError, "bias",
        ),
        (
            lambda: g.multi_head_attention(QKV, 3, keys=X, values=X), ShapeError, "keys must be",
        ),
        (lambda: g.attention(X, X, None), OptionError, "attention: v: an operand must be a graphc"),
        (
            lambda: g.attention(X, X, X, mask=g.input("m", (3, 3), "float16")),
            DTypeError, "attention: a mask must be bool or float32, the dtype of q, got f16",
        ),
    ],
)  # fmt: skip
def test_operands_that_do_not_fit_are_refused(build, error, match):
    with pytest.raises(error, match=match):
        build()


HEADS = 4
DERIVED = {
    "plain": {},
    "causal": {"causal": True},
    "causal from the first": {"causal": "first"},
    "bool mask": {"mask": "bool"},
    "float mask": {"mask": "float64"},
    "float mask, causal, dropped": {"mask": "float64", "causal": True, "drop": 0.3},
    "dropped": {"drop": 0.4},
    "shared heads": {"key_heads": 2},
    "one head of keys, masked": {"key_heads": 1, "mask": "float64"},
    "shared heads, dropped": {"key_heads": 2, "drop": 0.4},
    "bool mask, causal": {"mask": "bool", "causal": True},
}


OF_THIRD_ORDER = ("float mask, causal, dropped", "shared heads, dropped")
"""Cases whose third derivatives quick tests compare."""

ORDERS = [
    pytest.param(
        name, order, marks=[pytest.mark.slow] * (order == 3 and name not in OF_THIRD_ORDER)
    )
    for name in DERIVED
    for order in (2, 3)
    if order == 3 or name not in OF_THIRD_ORDER
]


def derivatives(form, orders, key_heads=HEADS, mask=None, drop=0.0, causal=False):
    """Derivatives of a function of attention from the first to this order, in float64."""
    rng = np.random.default_rng(3)
    feeds = {
        "q": rng.standard_normal((2, HEADS, 5, 3)),
        "k": rng.standard_normal((2, key_heads, 6, 3)),
        "v": rng.standard_normal((2, key_heads, 6, 4)),
    }
    wrt = [g.input(name, array.shape, "float64") for name, array in feeds.items()]
    q, k, v = wrt
    shown = None
    if mask == "bool":
        shown = g.constant(rng.random((2, 1, 5, 6)) < 0.7)
    elif mask is not None:
        feeds["mask"] = rng.standard_normal((HEADS, 5, 6))
        feeds["mask"][:, 1, 2] = -np.inf
        shown = g.input("mask", (HEADS, 5, 6), "float64")
        wrt.append(shown)
    y = g.attention(q, k, v, causal, drop, form=form, mask=shown)
    total, outputs = g.sum(y * g.sin(y)), {}
    for order in range(1, orders + 1):
        slopes = g.gradient(total, wrt)
        outputs |= {f"{x.name}.{order}": slope for x, slope in zip(wrt, slopes, strict=True)}
        parts = [g.sum(g.sin(slope)) for slope in slopes]
        total = sum(parts[1:], parts[0])
    finite = mask is None
    program = g.compile(outputs=outputs, training=True, check_finite=finite, kernels="numpy")
    return {name: array.copy() for name, array in program.step(**feeds).items()}


@pytest.mark.parametrize(("name", "orders"), ORDERS)
def test_derivatives_of_every_order_are_those_of_composed_attention(name, orders):
    composed, fused = (derivatives(f, orders, **DERIVED[name]) for f in ("composed", "fused"))
    assert fused.keys() == composed.keys()
    for name, array in composed.items():
        assert np.abs(array).max() > 1e-3
        np.testing.assert_allclose(fused[name], array, rtol=1e-9, atol=1e-10, err_msg=name)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_learned_mask_of_16_bit_attention_has_the_gradient_of_float32(dtype):
    """Its gradient is computed in float32; a row that -max hides wholly has equal weights."""
    rng = np.random.default_rng(5)
    q, k, v, weight = (rng.standard_normal((1, 2, 6, 4)).astype("float32") for _ in range(4))
    mask = rng.standard_normal((6, 6)).astype("float32")
    mask[2] = np.finfo("float32").min
    found = {}
    for narrow in (dtype, "float32"):
        feeds = dict(zip(("q", "k", "v"), (q, k, v), strict=True))
        given = [g.cast(g.cast(g.input(n, q.shape), dtype), narrow) for n in feeds]
        shown = g.input("mask", (6, 6))
        y = g.attention(*given, form="fused", mask=shown)
        total = g.sum(g.cast(y, "float32") * g.constant(weight))
        (slopes,) = g.gradient(total, [shown])
        program = g.compile(outputs={"slopes": slopes}, training=True)
        found[narrow] = program.step(**feeds, mask=mask)["slopes"].copy()
    assert np.abs(found["float32"][2]).max() > 1e-3
    # dy is rounded to 16 bits.
    np.testing.assert_allclose(found[dtype], found["float32"], rtol=0.02, atol=0.02)
