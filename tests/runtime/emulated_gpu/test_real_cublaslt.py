"""The binding of cuBLASLt against the library itself: its header, and the descriptors it fills.

Neither needs a driver. The compiler compares numbers, sizes and the types of arguments with the
header; the library says what the descriptors hold that it was given.
"""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from codegen.on_cpu import places_of
from codegen.test_epilogues import addresses_of, node_of, normal
from ops.test_float8 import scale_states, stored_values

import graphc as g
from graphc.codegen.lowering import calls_of
from graphc.codegen.products import gemm as numbers
from graphc.codegen.products.gemm import gemms
from graphc.codegen.text.operands import in_one_piece
from graphc.errors import DependencyError
from graphc.ir.builder import apply
from graphc.ir.types import bfloat16, float8_e4m3, float8_e5m2, float16, float32, float64
from graphc.ops.float8 import Float8Product
from graphc.ops.matmul import Linear, LinearAttributes, Matmul, MatmulAttributes
from graphc.ops.product_with_sums import ProductWithSums
from graphc.runtime.gpu import cublaslt
from graphc.runtime.gpu.cublaslt import Heuristic, LtProduct, MatrixPlacement

pytestmark = pytest.mark.peers

CONSTANTS = {
    "CUDA_R_32F": numbers.DATA_TYPES[float32],
    "CUDA_R_64F": numbers.DATA_TYPES[float64],
    "CUDA_R_16F": numbers.DATA_TYPES[float16],
    "CUDA_R_16BF": numbers.DATA_TYPES[bfloat16],
    "CUDA_R_8F_E4M3": numbers.DATA_TYPES[float8_e4m3],
    "CUDA_R_8F_E5M2": numbers.DATA_TYPES[float8_e5m2],
    "CUBLAS_COMPUTE_32F": numbers.COMPUTE_32F,
    "CUBLAS_COMPUTE_64F": numbers.COMPUTE_64F,
    "CUBLAS_COMPUTE_32F_FAST_TF32": numbers.COMPUTE_32F_FAST_TF32,
    "CUBLAS_OP_N": 0,
    "CUBLAS_OP_T": 1,
    "CUBLASLT_MATMUL_DESC_TRANSA": cublaslt.DESC_TRANSA,
    "CUBLASLT_MATMUL_DESC_TRANSB": cublaslt.DESC_TRANSB,
    "CUBLASLT_MATMUL_DESC_EPILOGUE": cublaslt.DESC_EPILOGUE,
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": cublaslt.DESC_BIAS_POINTER,
    "CUBLASLT_MATMUL_DESC_A_SCALE_POINTER": cublaslt.DESC_SCALE_POINTERS[0],
    "CUBLASLT_MATMUL_DESC_B_SCALE_POINTER": cublaslt.DESC_SCALE_POINTERS[1],
    "CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT": cublaslt.LAYOUT_BATCH_COUNT,
    "CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET": cublaslt.LAYOUT_STRIDED_BATCH_OFFSET,
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": cublaslt.PREF_MAX_WORKSPACE_BYTES,
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": cublaslt.PREF_REDUCTION_SCHEME_MASK,
    **{
        f"CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{letter}_BYTES": number
        for letter, number in zip("ABCD", cublaslt.PREF_MIN_ALIGNMENT_BYTES, strict=True)
    },
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": cublaslt.REDUCTION_IN_COMPUTE_TYPE,
    "CUBLASLT_EPILOGUE_DEFAULT": cublaslt.EPILOGUES["none"],
    "CUBLASLT_EPILOGUE_BIAS": cublaslt.EPILOGUES["bias"],
    "CUBLASLT_EPILOGUE_GELU": cublaslt.EPILOGUES["gelu"],
    "CUBLASLT_EPILOGUE_GELU_BIAS": cublaslt.EPILOGUES["bias_gelu"],
    "CUBLASLT_EPILOGUE_BGRADB": cublaslt.EPILOGUES["sums"],
    **{f"CUBLAS_STATUS_{name}": number for number, name in cublaslt.STATUS.items()},
    "MAJOR_VERSION": 0,
    "MINOR_VERSION": 1,
    "PATCH_LEVEL": 2,
}

FUNCTIONS = (
    "cublasLtCreate", "cublasLtDestroy", "cublasLtGetProperty", "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmulAlgoCheck",
    *(
        f"cublasLt{kind}{end}"
        for kind in ("MatmulDesc", "MatrixLayout", "MatmulPreference")
        for end in ("Create", "Destroy", "SetAttribute")
    ),
)  # fmt: skip

HEAD = """#include <cstddef>
#include <cublasLt.h>
#include <type_traits>
template <class... T> struct List {};
template <class F> struct Of;
template <class... T> struct Of<cublasStatus_t (*)(T...)> { using arguments = List<T...>; };
// p: a pointer, 4 or 8: a number of so many bytes
template <class T> constexpr char kind = std::is_pointer_v<T> ? 'p' : '0' + sizeof(T);
template <class... T> constexpr bool same(const char *wanted, List<T...>) {
    const char found[] = {kind<T>..., 0};
    for (unsigned i = 0; i <= sizeof...(T); ++i)
        if (found[i] != wanted[i]) return false;
    return true;
}
"""


@pytest.fixture(scope="module")
def library():
    try:
        return cublaslt.load_cublaslt()
    except DependencyError as error:
        pytest.skip(str(error))


NO_COMPILER = """#define CUDARTAPI
#define __host__
#define __device__
#define __device_builtin__
#define __device_builtin_texture_type__
#define __device_builtin_surface_type__
#define __cudart_builtin__
#define __align__(n) __attribute__((aligned(n)))
#define __builtin_align__(n) __align__(n)
#define __forceinline__ inline
"""
"""What crt/host_defines.h defines for a host's compiler; it comes with nvcc, the other headers with
the libraries."""

NO_TARGETS = """#define NV_IF_ELSE_TARGET(target, there, elsewhere) elsewhere
#define NV_IF_TARGET(target, ...)
"""
"""What nv/target, which comes with CCCL, defines for a host's compiler: it is no target."""


@pytest.fixture(scope="module")
def include(library, tmp_path_factory):
    """Options that name the folders of headers."""
    folder = Path(library._name).parent.parent / "include"
    if not all((folder / name).exists() for name in ("cublasLt.h", "driver_types.h")):
        pytest.skip("the headers of cuBLASLt or of CUDA's runtime are not installed")
    stub = tmp_path_factory.mktemp("include")
    (stub / "crt").mkdir()
    (stub / "crt" / "host_defines.h").write_text(NO_COMPILER)
    (stub / "nv").mkdir()
    (stub / "nv" / "target").write_text(NO_TARGETS)
    return f"-I{folder}", f"-I{stub}"  # CUDA's own come first where they are there


def compiled(include, text):
    """What the compiler says against a text."""
    command = ["g++", "-std=c++17", "-fsyntax-only", *include, "-x", "c++", "-"]
    return subprocess.run(command, input=HEAD + text, text=True, capture_output=True, check=False)


def kinds(function):
    """The types of a function's arguments, a letter each."""
    given = function.argtypes
    return "".join("p" if t is ctypes.c_void_p else str(ctypes.sizeof(t)) for t in given)


def checks(library):
    cublaslt.declare(library)
    lines = [f"static_assert({name} == {number});" for name, number in CONSTANTS.items()]
    for name in FUNCTIONS:
        wanted = kinds(getattr(library, name))
        lines.append(f'static_assert(same("{wanted}", Of<decltype(&{name})>::arguments{{}}));')
    result = "cublasLtMatmulHeuristicResult_t"
    fields = {"algo": "algorithm", "workspaceSize": "workspace_bytes", "state": "state"}
    lines.append(f"static_assert(sizeof({result}) == {ctypes.sizeof(Heuristic)});")
    lines += [
        f"static_assert(offsetof({result}, {theirs}) == {getattr(Heuristic, ours).offset});"
        for theirs, ours in fields.items()
    ]
    return lines


def test_numbers_types_and_layouts_are_those_of_the_header(library, include):
    found = compiled(include, "\n".join(checks(library)))
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("CUBLASLT_EPILOGUE_GELU == 32", "CUBLASLT_EPILOGUE_GELU == 33"),
        ('same("ppppppppp', 'same("pppppppp4'),
        ("workspaceSize) == 64", "workspaceSize) == 72"),
    ],
)
def test_a_wrong_number_is_found(library, include, right, wrong):
    text = "\n".join(checks(library))
    assert right in text
    found = compiled(include, text.replace(right, wrong, 1))
    assert "static assertion failed" in found.stderr


def read(library, kind, made, attribute, type):
    """An attribute of a descriptor, as the library has it."""
    value, written = type(), ctypes.c_size_t()
    function = getattr(library, f"cublasLt{kind}GetAttribute")
    function.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t,
                         ctypes.c_void_p]  # fmt: skip
    status = function(
        made, attribute, ctypes.byref(value), ctypes.sizeof(value), ctypes.byref(written)
    )
    assert status == 0
    assert written.value == ctypes.sizeof(value)
    return value.value


INT, LONG, POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
TYPE, ORDER, ROWS, COLUMNS, LEADING = range(5)
"""The first attributes of a layout."""
COMPUTE_TYPE, SCALE_TYPE = 0, 1
"""The first attributes of an operation."""


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("batch", [(), (3,)])
def test_the_library_holds_what_it_was_given(library, dtype, flags, batch):
    rng = np.random.default_rng(0)
    a = normal(rng, (*batch, *((4, 3) if flags[0] else (3, 4))), dtype)
    b = normal(rng, (*batch, *((5, 4) if flags[1] else (4, 5))), dtype)
    node, arrays = node_of(Matmul, (a, b), MatmulAttributes(*flags))
    (call,) = gemms(node, places_of(arrays))
    check_descriptors(library, call, None)


@pytest.mark.parametrize("activation", ["none", "gelu"])
def test_the_library_holds_epilogues(library, activation):
    rng = np.random.default_rng(1)
    operands = [normal(rng, s, "float32") for s in ((3, 4), (5, 4), (5,))]
    node, arrays = node_of(Linear, operands, LinearAttributes(activation))
    (call,) = gemms(node, places_of(arrays))
    check_descriptors(library, call, addresses_of(arrays)[node.inputs[2]])


def test_the_library_holds_sums(library):
    rng = np.random.default_rng(2)
    dy, x = (g.input(name, shape) for name, shape in (("dy", (3, 4)), ("x", (3, 5))))
    node = apply(ProductWithSums, dy, x)
    arrays = {value: normal(rng, value.shape, "float32") for value in (dy, x, *node.outputs)}
    (call,) = gemms(node, places_of(arrays))
    assert call.epilogue == "sums"
    check_descriptors(library, call, addresses_of(arrays)[node.outputs[1]])


def test_the_library_holds_factors_of_8_bit_operands(library):
    (a,), (b,) = stored_values((16, 32), dtype="float8_e5m2"), stored_values((48, 32))
    node = apply(Float8Product, a, b, *scale_states(2))
    values = (*node.inputs, node.output)
    (call,) = calls_of(node, {value: in_one_piece(value.type) for value in values}).calls
    check_descriptors(library, call, None, (0x1000, 0x2000))


def check_descriptors(library, call, bias, factors=()):
    cublaslt.declare(library)
    placements = [
        MatrixPlacement(m.leading, m.stride, 16) for m in (call.first, call.second, call.c)
    ]
    with LtProduct(library, ctypes.c_void_p(), call, placements, bias, factors=factors) as product:
        operation, *layouts, _ = product._described
        held = {
            name: read(library, "MatmulDesc", operation, attribute, type)
            for name, attribute, type in (
                ("compute", COMPUTE_TYPE, INT), ("scale", SCALE_TYPE, INT),
                ("transa", cublaslt.DESC_TRANSA, INT), ("transb", cublaslt.DESC_TRANSB, INT),
                ("epilogue", cublaslt.DESC_EPILOGUE, INT),
                ("bias", cublaslt.DESC_BIAS_POINTER, POINTER),
            )
        }  # fmt: skip
        is_double = call.first.dtype == float64
        assert held == {
            "compute": call.compute, "scale": 1 if is_double else 0,
            "transa": call.transpose_first, "transb": call.transpose_second,
            "epilogue": cublaslt.EPILOGUES[call.epilogue], "bias": bias,
        }  # fmt: skip
        for attribute, factor in zip(cublaslt.DESC_SCALE_POINTERS, factors, strict=False):
            assert read(library, "MatmulDesc", operation, attribute, POINTER) == factor
        shapes = cublaslt.shapes(call)
        matrices = (call.first, call.second, call.c)
        for layout, shape, matrix in zip(layouts, shapes, matrices, strict=True):
            get = (library, "MatrixLayout", layout)
            assert read(*get, TYPE, INT) == numbers.DATA_TYPES[matrix.dtype]
            assert read(*get, ORDER, INT) == 0  # by columns
            assert (read(*get, ROWS, LONG), read(*get, COLUMNS, LONG)) == shape
            assert read(*get, LEADING, LONG) == matrix.leading
            assert read(*get, cublaslt.LAYOUT_BATCH_COUNT, INT) == call.batch
            stride = matrix.stride if call.batch > 1 else 0
            assert read(*get, cublaslt.LAYOUT_STRIDED_BATCH_OFFSET, LONG) == stride
        preference = product._preference([4, 8, 16], 1 << 20)
        get = (library, "MatmulPreference", preference)
        assert read(*get, cublaslt.PREF_MAX_WORKSPACE_BYTES, LONG) == 1 << 20
        assert read(*get, cublaslt.PREF_REDUCTION_SCHEME_MASK, INT) == 2
        alignments = [read(*get, a, INT) for a in cublaslt.PREF_MIN_ALIGNMENT_BYTES]
        assert alignments == [4, 8, 16, 16]
