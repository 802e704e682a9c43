"""Convolutions by oneDNN against their definition in float64, in both layouts of maps."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from runtime.cpu.onednn.calls import (
    assert_close,
    drawn,
    has_avx512,
    moved,
    needs_library,
    run,
    strided_of,
)
from runtime.cpu.onednn.convolutions import LAST, by_definition, lying, nodes

from graphc.codegen.convolution import native
from graphc.codegen.convolution.native import copied_strides, native_bytes, takes_strides
from graphc.ir.types import channels_last_strides, contiguous_strides
from graphc.runtime.cpu.onednn import convolutions

pytestmark = needs_library

FORWARD, INPUT, WEIGHT = range(3)
needs_bfloat16 = pytest.mark.skipif(
    not has_avx512("avx512_bf16"), reason="the processor has no bfloat16"
)


def arrays_of(node, last=True):
    values = (*node.inputs, node.output)
    arrays = {value: drawn(value, seed) for seed, value in enumerate(values)}
    maps = [v for v in values if len(v.shape) == 4] if last else []
    return arrays | {value: lying(arrays[value]) for value in maps}


def check(node, last=True, threads=2):
    """Run a node, if the library has a primitive for it, and compare."""
    arrays = arrays_of(node, last)
    expected, scale, terms = by_definition(node, arrays)
    found = run(node, arrays, native_bytes(node, strided_of(arrays)), threads)
    if found is not None:
        assert_close(arrays[node.output], expected, terms, scale)
    return found


CASES = {
    "3x3": {"x": (3, 16, 9, 11), "w": (32, 16, 3, 3), "padding": (1, 1)},
    "few channels": {"x": (2, 3, 20, 21), "w": (16, 3, 7, 7), "stride": (2, 2), "padding": (3, 3)},
    "1x1": {"x": (2, 24, 10, 9), "w": (40, 24, 1, 1)},
    "1x1 apart": {"x": (2, 24, 10, 9), "w": (40, 24, 1, 1), "stride": (2, 2)},
    "depthwise": {"x": (2, 32, 9, 8), "w": (32, 1, 3, 3), "padding": (1, 1), "groups": 32},
    "groups": {"x": (2, 32, 9, 8), "w": (64, 16, 3, 3), "padding": (1, 1), "groups": 2},
    "dilated": {"x": (2, 16, 9, 8), "w": (16, 16, 3, 3), "padding": (2, 2), "dilation": (2, 2)},
    "lopsided": {"x": (2, 5, 9, 8), "w": (7, 5, 3, 2), "stride": (2, 1), "padding": (1, 0, 2, 1)},
    "odd": {"x": (1, 16, 12, 7), "w": (16, 16, 3, 3), "stride": (2, 2), "padding": (1, 1)},
}


@pytest.mark.parametrize("which", [FORWARD, INPUT, WEIGHT])
@pytest.mark.parametrize("case", CASES)
def test_a_convolution_on_channels_last_maps(case, which):
    found = check(nodes(**CASES[case])[which])
    assert found is not None or not has_avx512()


@pytest.mark.parametrize("which", [FORWARD, INPUT, WEIGHT])
def test_row_major_maps_are_copied_some_images_at_a_time(monkeypatch, which):
    node = nodes((5, 16, 9, 11), (32, 16, 3, 3), padding=(1, 1))[which]
    monkeypatch.setattr(native, "COPIED_BYTES", 2 * 9 * 11 * 48 * 4)
    assert len(check(node, last=False)) >= 3 * 3


def test_each_map_that_lies_row_major_has_room_of_its_own():
    node = nodes((2, 3, 20, 21), (16, 3, 7, 7), (2, 2), (3, 3))[WEIGHT]
    arrays = arrays_of(node)
    expected, scale, terms = by_definition(node, arrays)
    rooms = [native_bytes(node, strided_of(arrays))]
    for value in node.inputs:
        arrays[value] = np.ascontiguousarray(arrays[value])
        rooms.append(native_bytes(node, strided_of(arrays)))
        assert rooms[-1] - rooms[-2] == value.type.bytes
        assert run(node, arrays, rooms[-1]) is not None
        assert_close(arrays[node.output], expected, terms, scale)


PATCHES = {
    "square": {"x": (5, 3, 35, 34), "w": (24, 3, 16, 16), "stride": (16, 16)},
    "long": {"x": (5, 3, 13, 30), "w": (24, 3, 2, 5), "stride": (2, 5)},
    "one": {"x": (5, 3, 16, 16), "w": (24, 3, 16, 16), "stride": (16, 16)},
}


@pytest.fixture
def products_only(monkeypatch):
    """The library's own primitive is not used."""

    def refuse(*_):
        raise AssertionError("a gradient of patches is a product")

    monkeypatch.setattr(convolutions._Form, "calls", refuse)


def calls_of_patches(node, last):
    """Check a gradient of row-major filters, and return the number of its calls."""
    arrays = arrays_of(node, last)
    arrays |= {v: np.ascontiguousarray(a) for v, a in arrays.items() if v is node.output}
    expected, scale, terms = by_definition(node, arrays)
    found = run(node, arrays, native_bytes(node, strided_of(arrays)), threads=1)
    assert_close(arrays[node.output], expected, terms, scale)
    assert {call.threads for call in found} == {1}
    return len(found)


@pytest.mark.parametrize("accumulate", [False, True])
@pytest.mark.parametrize("case", PATCHES)
def test_gradients_of_patches_are_products(monkeypatch, case, accumulate):
    """A product for some images if the pixels of all maps are one sequence, else one an image."""
    node = nodes(**PATCHES[case], accumulate=accumulate)[WEIGHT]
    images = node.inputs[1]
    monkeypatch.setattr(native, "COPIED_BYTES", 2 * images.type.bytes // images.shape[0])
    assert calls_of_patches(node, last=True) == accumulate + 3 * 2
    assert calls_of_patches(node, last=False) == accumulate + (3 if case == "one" else 5) * 2


@pytest.mark.usefixtures("products_only")
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("width", [112, 64])
def test_patches_are_products_in_the_workspace_of_any_layout(width, last):
    """Maps that the library reads in place have no bytes for copies in the workspace."""
    node = nodes((8, 3, width, width), (16, 3, 4, 4), (4, 4))[WEIGHT]
    assert calls_of_patches(node, last)


@needs_bfloat16
def test_gradients_of_patches_in_16_bits(monkeypatch):
    node = nodes(**PATCHES["square"], dtype="bfloat16", wide=True)[WEIGHT]
    assert calls_of_patches(node, last=True) == 2
    monkeypatch.setattr(native, "COPIED_BYTES", 1)
    assert calls_of_patches(node, last=True) == 5 * 2


@needs_bfloat16
def test_narrow_gradients_of_patches_are_not_rounded_for_some_images(monkeypatch):
    monkeypatch.setattr(native, "COPIED_BYTES", 1)
    node = nodes(**PATCHES["long"], dtype="bfloat16")[WEIGHT]
    arrays = arrays_of(node)
    arrays[node.output] = np.ascontiguousarray(arrays[node.output])
    found = run(node, arrays, native_bytes(node, strided_of(arrays)))
    assert found is None or len(found) < 5 * 2


def test_a_bias_is_added():
    assert check(nodes(**CASES["3x3"], bias=True)[FORWARD]) is not None


@pytest.mark.parametrize("last", [True, False])
def test_a_gradient_is_added_to_a_running_sum(monkeypatch, last):
    monkeypatch.setattr(native, "COPIED_BYTES", 1)
    node = nodes(**CASES["3x3"], accumulate=True)[WEIGHT]
    assert check(node, last) is not None


def test_a_running_sum_in_its_place_is_not_copied():
    node = nodes(**CASES["3x3"], accumulate=True)[WEIGHT]
    arrays = arrays_of(node)
    expected, scale, terms = by_definition(node, arrays)
    arrays[node.output] = arrays[node.inputs[2]]
    assert len(run(node, arrays, native_bytes(node, strided_of(arrays)))) == 2
    assert_close(arrays[node.output], expected, terms, scale)


@needs_bfloat16
@pytest.mark.parametrize("which", [FORWARD, INPUT, WEIGHT])
def test_bfloat16_is_summed_in_float32(which):
    node = nodes(**CASES["3x3"], dtype="bfloat16", wide=True)[which]
    assert check(node) is not None


@needs_bfloat16
def test_a_narrow_gradient_is_not_rounded_for_some_images(monkeypatch):
    monkeypatch.setattr(native, "COPIED_BYTES", 1)
    node = nodes(**CASES["3x3"], dtype="bfloat16")[WEIGHT]
    assert check(node) is not None
    assert check(node, last=False) is None


extents = st.tuples(st.integers(1, 3), st.integers(1, 3))
geometries = st.fixed_dictionaries(
    {
        "stride": extents,
        "padding": st.tuples(*[st.integers(0, 2)] * 4),
        "dilation": st.tuples(st.integers(1, 2), st.integers(1, 2)),
        "groups": st.sampled_from((1, 1, 2, 4)),
    }
)


@needs_bfloat16
@pytest.mark.parametrize("width", [1, 2])
def test_gradients_of_narrow_filters_read_nothing_unwritten(width):
    """oneDNN's own primitive does on maps that are less wide than the windows' step."""
    for stride in ((2, 2), (3, 3), (2, 1)):
        node = nodes((3, 32, 2, width), (8, 32, 3, 3), stride, (1, 1), dtype="bfloat16")[WEIGHT]
        found = check(node)
        assert (found is None) == (width < stride[1])


@needs_bfloat16
@given(
    geometries, extents, st.integers(1, 3), st.integers(1, 9), st.integers(1, 9),
    st.integers(1, 20), st.integers(1, 20),
)  # fmt: skip
def test_any_narrow_convolution_is_right_or_left_to_numpy(geometry, window, n, h, w, c, k):
    groups = geometry["groups"]
    reach = [d * (r - 1) + 1 for d, r in zip(geometry["dilation"], window, strict=True)]
    top, left, bottom, right = geometry["padding"]
    assume(h + top + bottom >= reach[0] and w + left + right >= reach[1])
    shapes = (n, c * groups, h, w), (k * groups, c, *window)
    for node in nodes(*shapes, **geometry, dtype="bfloat16"):
        check(node)


@given(
    geometries, extents, st.integers(1, 3), st.integers(5, 12), st.integers(5, 12),
    st.integers(1, 20), st.integers(1, 20), st.booleans(),
)  # fmt: skip
def test_any_convolution_is_right_or_left_to_numpy(geometry, window, n, h, w, c, k, last):
    groups = geometry["groups"]
    for node in nodes((n, c * groups, h, w), (k * groups, c, *window), **geometry):
        check(node, last)


@pytest.mark.parametrize("which", [FORWARD, INPUT, WEIGHT])
@pytest.mark.parametrize("case", ["3x3", "1x1 apart", "depthwise"])
def test_addresses_decide_no_bit(case, which):
    node = nodes(**CASES[case])[which]
    given, bits = arrays_of(node), set()
    for offset in (0, 4, 64, 256, 2052):
        arrays = {value: moved(array, offset) for value, array in given.items()}
        assert run(node, arrays, native_bytes(node, strided_of(arrays)) + offset) is not None
        bits.add(arrays[node.output].tobytes())
    assert len(bits) == 1


def test_filters_may_lie_anyhow():
    for node in nodes(**CASES["3x3"]):
        arrays, bits = arrays_of(node), set()
        (w,) = (v for v in arrays if v.shape == (32, 16, 3, 3))
        for order in (LAST, (0, 1, 2, 3), (3, 1, 0, 2)):
            arrays[w] = lying(arrays[w], order)
            assert run(node, arrays, native_bytes(node, strided_of(arrays))) is not None
            bits.add(arrays[node.output].tobytes("C"))
        assert len(bits) == 1


def test_convolutions_take_channels_last_maps_in_one_piece():
    node = nodes(**CASES["3x3"])[FORWARD]
    x, w = node.inputs
    for order, taken in ((LAST, True), ((0, 1, 2, 3), True), ((0, 3, 2, 1), False)):
        assert takes_strides(node, "x", x.type, lying(drawn(x), order).strides) is taken
    part = np.zeros((3, 9, 11, 17), np.float32).transpose(0, 3, 1, 2)[:, :16]
    assert not takes_strides(node, "x", x.type, part.strides)
    assert copied_strides(x.type, part.strides) == channels_last_strides(x.type)
    turned = np.zeros((3, 16, 11, 9), np.float32).swapaxes(2, 3)
    assert copied_strides(x.type, turned.strides) == contiguous_strides(x.type)
    assert takes_strides(node, "w", w.type, lying(drawn(w), (3, 1, 0, 2)).strides)


def test_float64_is_left_to_numpy():
    for node in nodes(**CASES["3x3"], dtype="float64"):
        assert native_bytes(node, {}) == 0
        assert run(node, arrays_of(node), 2**20) is None


def test_a_primitive_made_for_fewer_threads_runs_on_more():
    for node in nodes((4, 16, 9, 11), (32, 16, 3, 3), padding=(1, 1)):
        assert check(node, threads=1) is not None
        assert check(node, threads=3) is not None


def test_without_room_there_is_no_call():
    for node in nodes(**CASES["3x3"]):
        assert run(node, arrays_of(node), 4096) is None
