"""Which algorithm computes a product, and the kernel where there is none.

The stand-in for cuBLASLt cuts sums into parts, by all that it is told of the operands; so another
choice has other bits.
"""

import itertools
import json
from dataclasses import replace

import loops
import numpy as np
import pytest
from codegen.fake_cublas import StandIn
from codegen.on_cpu import Library, aligned, apart, places_of
from codegen.test_epilogues import TOLERANCE, addresses_of, node_of, normal

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.products.gemm import gemms
from graphc.codegen.products.kernel import product_kernel
from graphc.codegen.text.kernel import module_text
from graphc.codegen.workspace import gpu_workspace
from graphc.devices.device import DEVICES
from graphc.errors import OptionError
from graphc.ops.matmul import Linear, Matmul, MatmulAttributes
from graphc.runtime.gpu.cublaslt import CublasError, NoAlgorithm
from graphc.runtime.gpu.nvrtc import compile_cubin


@pytest.fixture
def lt():
    handle = StandIn()
    yield handle
    assert handle.live == 0
    handle.close()


def run(lt, node, arrays):
    for call in gemms(node, places_of(arrays)):
        lt.run(call, addresses_of(arrays))
    return arrays[node.output].copy()


@pytest.mark.parametrize("flags", list(itertools.product((False, True), repeat=2)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_product_has_the_same_bits_wherever_it_lies(lt, flags, dtype):
    """In one piece, in larger arrays, and as a batch that has to be cut into several calls."""
    rng = np.random.default_rng(0)
    a = normal(rng, (2, 3, *((48, 16) if flags[0] else (16, 48))), dtype)
    b = normal(rng, (2, 3, *((24, 48) if flags[1] else (48, 24))), dtype)
    results = []
    for wider in (0, 8, 64):
        left, right = (within(x, wider) for x in (a, b))
        node, arrays = node_of(Matmul, (left, right), MatmulAttributes(*flags))
        arrays[node.output] = within(arrays[node.output], wider)
        assert len(gemms(node, places_of(arrays))) == (2 if wider else 1)
        results.append(run(lt, node, arrays))
    assert len(lt.record["algorithms"]) == 1
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0], strict=True)
    exact = [x.astype(np.float64) for x in (a, b)]
    exact = [x.swapaxes(-1, -2) if flag else x for x, flag in zip(exact, flags, strict=True)]
    reach = 8 * TOLERANCE[dtype]
    np.testing.assert_allclose(results[0].astype(float), exact[0] @ exact[1], reach, reach)


def within(array, wider):
    """The same numbers with so many more columns, and a matrix more, between them."""
    if not wider:
        return array
    *batch, heads, rows, columns = array.shape
    large = aligned(np.zeros((*batch, heads + 1, rows, columns + wider), array.dtype))
    large[:, :heads, :, :columns] = array
    return large[:, :heads, :, :columns]


def test_the_stand_in_would_choose_otherwise_by_leading_dimensions(lt):
    """What the test above rests on: asked for operands as they lie, the library has other bits."""
    rng = np.random.default_rng(1)
    results = set()
    for wider in range(0, 64, 8):
        a = normal(np.random.default_rng(2), (16, 48), "float32")
        node, arrays = node_of(Matmul, (apart_by(a, wider), normal(rng, (48, 24), "float32")))
        (call,) = gemms(node, places_of(arrays))
        space = lt.workspace.ctypes.data
        with lt.bind(call, addresses_of(arrays), space, 1024) as product:
            results.add(product.first_choice([16, 16, 16], 1024).opaque[7])
    assert len(results) > 1


def apart_by(array, wider):
    large = aligned(np.zeros((array.shape[0], array.shape[1] + wider), array.dtype))
    large[:, : array.shape[1]] = array
    return large[:, : array.shape[1]]


def test_rows_that_lie_less_aligned_have_an_algorithm_of_their_own(lt):
    rng = np.random.default_rng(3)
    a, b = normal(rng, (16, 48), "float32"), normal(rng, (48, 24), "float32")
    expected = a.astype(np.float64) @ b
    for left in (a, apart(a, 1)):
        node, arrays = node_of(Matmul, (left, b))
        np.testing.assert_allclose(run(lt, node, arrays), expected, rtol=2e-5, atol=2e-5)
    assert len(lt.record["algorithms"]) == 2


def linear(rng, dtype="float32"):
    operands = [normal(rng, s, dtype) for s in ((8, 16), (12, 16), (12,))]
    return node_of(Linear, operands)


def test_a_record_makes_the_same_choice_and_asks_for_none(lt):
    node, arrays = linear(np.random.default_rng(4))
    expected = run(lt, node, arrays)
    record = json.loads(json.dumps(lt.record))
    (key,) = record["algorithms"]
    assert "12x8x16" in key
    asked = lt.library.asked_choices()
    again = StandIn(record)
    np.testing.assert_array_equal(run(again, node, arrays), expected)
    assert again.record == record
    assert lt.library.asked_choices() == asked > 0


def test_a_record_holds_that_there_was_none(lt):
    node, arrays = linear(np.random.default_rng(5))
    (call,) = gemms(node, places_of(arrays))
    with pytest.raises(NoAlgorithm, match=r"float32 product \(m 12, n 8, k 16, epilogue bias\)"):
        lt.run(call, addresses_of(arrays), 100)
    assert list(lt.record["algorithms"].values()) == [None]
    asked = lt.library.asked_choices()
    with pytest.raises(NoAlgorithm):
        StandIn(lt.record).run(call, addresses_of(arrays), 100)
    assert lt.library.asked_choices() == asked


def test_a_record_of_another_gpu_is_refused(lt):
    """Where the library does not take an algorithm, it is not tried."""
    node, arrays = linear(np.random.default_rng(9))
    run(lt, node, arrays)
    record = lt.record
    record["algorithms"] = dict.fromkeys(record["algorithms"], "00" * 64)
    again = StandIn(record)
    with pytest.raises(
        CublasError, match=r"epilogue bias\) is not available; the record may come from another GPU"
    ):
        run(again, node, arrays)
    again.close()


def test_the_workspace_does_not_depend_on_splits():
    """Attention heads side by side are products in a loop; the choice depends on the room."""
    a, b = (np.zeros((2, 3, 8, 8), np.float32) for _ in range(2))
    rooms = set()
    for wider in (0, 8):
        node, arrays = node_of(Matmul, (within(a, wider), within(b, wider)))
        strides = {value: array.strides for value, array in arrays.items()} if wider else {}
        rooms.add(gpu_workspace(node, DEVICES["h200"], strides).library_bytes)
    assert len(rooms) == 1


@pytest.mark.parametrize("kept", ["zz" * 64, "00", "", 5, [1], "00" * 65])
def test_a_record_that_holds_no_algorithm_is_refused(kept):
    record = {"cublaslt": "13.14.15", "algorithms": {"NN 1x1x1": kept}}
    with pytest.raises(
        CublasError, match=r"for 'NN 1x1x1', which is not an algorithm; delete the record"
    ):
        StandIn(record)


def test_a_record_of_another_version_is_refused():
    with pytest.raises(
        CublasError, match=r"by cuBLASLt 12.1.3, but version 13.14.15 is installed; install"
    ):
        StandIn({"cublaslt": "12.1.3", "algorithms": {}})


def product_case(flags, dtype, batch):
    """A product that adds to a running sum, any leading dimensions, and what NumPy computes."""
    rng = np.random.default_rng(6)
    a = normal(rng, (*batch, *((5, 3) if flags[0] else (3, 5))), dtype)
    b = normal(rng, (*batch, *((7, 5) if flags[1] else (5, 7))), dtype)
    left, right = (x.astype(np.float64) for x in (a, b))
    left = left.swapaxes(-1, -2) if flags[0] else left
    right = right.swapaxes(-1, -2) if flags[1] else right
    node, arrays = node_of(Matmul, [apart(x, x.ndim - 1) for x in (a, b)], MatmulAttributes(*flags))
    arrays[node.output] = apart(np.ones_like(arrays[node.output]), a.ndim - 1)
    calls = [replace(c, alpha=0.5, beta=1.0) for c in gemms(node, places_of(arrays))]
    launches = tuple(product_kernel(call) for call in calls)
    return node, arrays, launches, left @ right / 2 + 1


def test_the_kernel_of_a_product():
    """Any leading dimension, and a running sum; in float64 what NumPy computes."""
    flags = itertools.product((False, True), repeat=2)
    dtypes = ("float64", "float32", "float16", "bfloat16")
    names = list(itertools.product(flags, dtypes, ((), (3,), (2, 3))))
    cases = [product_case(*name) for name in names]
    library = Library([launch.kernel for _, _, launches, _ in cases for launch in launches])
    for name, (node, arrays, launches, expected) in zip(names, cases, strict=True):
        with loops.case(name):
            library.run(NodeCalls(launches), arrays, descending=True)
            tolerance = 2 * TOLERANCE[name[1]]
            result = arrays[node.output].astype(np.float64)
            np.testing.assert_allclose(result, expected, tolerance, tolerance)


def test_the_kernel_has_no_epilogues():
    node, arrays = linear(np.random.default_rng(7))
    (call,) = gemms(node, places_of(arrays))
    with pytest.raises(OptionError, match="only the epilogue 'none', got 'bias'"):
        product_kernel(call)
    assert product_kernel(replace(call, epilogue="none")).block == 256


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_the_kernel_compiles(dtype):
    rng = np.random.default_rng(8)
    node, arrays = node_of(Matmul, [normal(rng, (2, 3, 3), dtype) for _ in range(2)])
    (call,) = gemms(node, places_of(arrays))
    kernel = product_kernel(replace(call, beta=1.0)).kernel
    assert compile_cubin(module_text([kernel]), 90).startswith(b"\x7fELF")
