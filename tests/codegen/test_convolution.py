"""Convolution by unfolding and products, on the CPU: layouts, tiles, groups and running sums."""

from dataclasses import replace

import numpy as np
import pytest
from codegen.checks import FLOATS
from codegen.convolution_cases import (
    GEOMETRIES,
    LIMITS,
    ORDERS,
    SIZES_OF_DTYPES,
    filled,
    in_float64,
    laid,
    limited,
    node_of,
    three,
)
from codegen.on_cpu import Library, aligned, apart, kernels_in, places_of, surroundings

from graphc.codegen.convolution import tiles
from graphc.codegen.lowering import calls_of
from graphc.codegen.node_calls import Gemm
from graphc.codegen.text.kernel import module_text
from graphc.ops.conv import (
    Conv2d,
    Conv2dWeightGradient,
    _weight_attributes,
)


@pytest.fixture(scope="module")
def library(cases):
    return Library(kernels_in([case.found for case in cases]))


def check(case, library, cublas):
    before = {value: array.copy() for value, array in case.arrays.items()}
    output, results = case.arrays[case.node.output], []
    for descending in (False, True):
        output[...] = np.nan
        library.run(case.found, case.arrays, descending, cublas)
        results.append(output.copy())
    for value in case.node.inputs:
        np.testing.assert_array_equal(case.arrays[value], before[value])
    np.testing.assert_array_equal(*results)
    reach = case.tolerance * max(1, np.abs(case.expected).max())
    np.testing.assert_allclose(
        results[0].astype(np.float64), case.expected, case.tolerance, reach, err_msg=case.name
    )


@pytest.mark.parametrize("layout", ORDERS)
@pytest.mark.parametrize("name", GEOMETRIES)
def test_layouts_and_tiles(name, layout, cases, library, cublas):
    chosen = [
        c for c in cases if c.name.startswith(f"{name}, {layout}, ") and "wide=" not in c.name
    ]
    assert len(chosen) >= 8
    for case in chosen:
        check(case, library, cublas)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES_OF_DTYPES)
def test_dtypes_and_running_sums(size, dtype, cases, library, cublas):
    chosen = [c for c in cases if f" {size}, {dtype}, wide" in c.name]
    assert len(chosen) == 8 * (4 + 3)
    for case in chosen:
        check(case, library, cublas)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("limit", [2**25, 2**13])
def test_sums_over_pixels_in_parts(limit, wide, accumulate, cublas, monkeypatch):
    """Sums of 16-bit operands are split if rows of the result are not aligned."""
    monkeypatch.setattr(tiles, "PIXELS_OF_A_PART", range(4, 17))
    limited(monkeypatch, limit)
    tiles.weight_plan.cache_clear()
    options = {"wide": wide, "accumulate": accumulate}
    cases = [
        three(layout, GEOMETRIES["padded"], orders, "bfloat16", **options)[-1]
        for layout, orders in ORDERS.items()
    ]
    library = Library(kernels_in([case.found for case in cases]))
    by_product = 0
    for case in cases:
        products = [call for call in case.found.calls if isinstance(call, Gemm)]
        by_product += bool(products)
        assert sum(call.batch for call in products) in (0, 5 * 3)
        assert not products or (len(products) == 1) == (limit == 2**25)
        assert {call.k for call in products} <= {14}
        check(case, library, cublas)
    assert by_product > len(cases) / 2
    tiles.weight_plan.cache_clear()


def test_tiles_change_no_bit_of_folded_sums(cases, library, cublas):
    """dx has one order of sums, however it is cut."""
    for name in ("padded", "strided", "odd"):
        results = []
        for size in LIMITS:
            (case,) = [c for c in cases if c.name == f"{name}, channels first, {size}: dx"]
            library.run(case.found, case.arrays, cublas=cublas)
            results.append(case.arrays[case.node.output].copy())
        for result in results[1:]:
            np.testing.assert_array_equal(result, results[0])


BREAKS = {
    "an edge is left out": ("inside = row >= 0", "inside = row >= 1"),
    "the next row is read": (
        "const int row = int(first_row + p)",
        "const int row = int(first_row + p + 1)",
    ),
    "a tap is left out": ("for (int s = 0", "for (int s = 1"),
    "the first image again": ("(first_image + n)", "(n)"),
}


@pytest.mark.parametrize(("right", "wrong"), BREAKS.values(), ids=BREAKS)
def test_a_broken_kernel_is_found(right, wrong, cases, cublas):
    names = [f"padded, channels first, some images: {op}" for op in ("forward", "dx")]
    chosen = [case for case in cases if case.name in names]
    kernels = kernels_in([case.found for case in chosen])
    assert right in module_text(kernels)
    broken = Library(kernels, lambda text: text.replace(right, wrong))
    caught = 0
    for case in chosen:
        try:
            check(case, broken, cublas)
        except AssertionError:
            caught += 1
    assert caught


@pytest.mark.parametrize(("right", "wrong"), [
    ("part < ", "part + 1 < "), ("pixel += ", "pixel += 1 + "), ("__syncthreads();", "")
])  # fmt: skip
@pytest.mark.parametrize("layout", ["channels first", "channels last"])
def test_a_broken_depthwise_sum_is_found(right, wrong, layout, cases, cublas):
    (case,) = [c for c in cases if c.name == f"depthwise, {layout}, whole: dw"]
    kernels = kernels_in([case.found])
    assert right in module_text(kernels)
    check(case, Library(kernels), cublas)
    with pytest.raises(AssertionError):
        check(case, Library(kernels, lambda text: text.replace(right, wrong)), cublas)


def test_sliced_channels_and_sums_in_place(cublas):
    """Parts of larger tensors, and dw over its running sum."""
    x_shape, w_shape, a = GEOMETRIES["strided"]
    rng = np.random.default_rng(9)
    x, w = filled(rng, x_shape, "float64"), filled(rng, w_shape, "float64")
    dy = filled(rng, node_of(Conv2d, [x, w], a, "float64").output.shape, "float64")
    to_w = replace(_weight_attributes(a, w_shape), accumulate=True)
    node = node_of(Conv2dWeightGradient, [dy, x, w], to_w, "float64")
    expected = in_float64(Conv2dWeightGradient, [dy, x, w], to_w)
    last = (0, 2, 3, 1)
    for order in ((0, 1, 2, 3), last):
        parts = [apart(laid(each, order), 1) if order != last else None for each in (dy, x)]
        if order == last:
            whole = [laid(np.repeat(each, 2, axis=1), last) for each in (dy, x)]
            parts = [each[:, : each.shape[1] // 2] for each in whole]
            for part, each in zip(parts, (dy, x), strict=True):
                part[...] = each
        sums = aligned(w)
        arrays = dict(zip(node.inputs, (*parts, sums), strict=True)) | {node.output: sums}
        around = [surroundings(part).copy() for part in parts]
        found = calls_of(node, places_of(arrays))
        Library(found.kernels).run(found, arrays, cublas=cublas)
        np.testing.assert_allclose(sums, expected, rtol=1e-12, atol=1e-11)
        for part, before in zip(parts, around, strict=True):
            np.testing.assert_array_equal(surroundings(part), before)
