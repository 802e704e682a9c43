"""Numbers of a step, against NumPy's kernels to the bit."""

import ml_dtypes
import numpy as np
import pytest
from codegen.llvm.families.natives import run_native
from ops.test_strides import run as run_numpy

import graphc as g
from graphc.ir.builder import apply
from graphc.ops.learning_rate import LEARNING_RATE_FORMS, LearningRate, LearningRateAttributes
from graphc.ops.update import AdamCorrection, BetaAttributes

STEPS = (-3, -1, 0, 1, 2, 7, 8, 9, 50, 99, 100, 101, 10**6)


def both(node, feeds):
    """What the native kernels and NumPy's give."""
    arrays = feeds | {v: np.full(v.shape, 77, v.type.dtype.numpy) for v in node.outputs}
    with np.errstate(all="ignore"):
        wanted = run_numpy(node, {v: a.copy() for v, a in arrays.items()})
    found = run_native(node, arrays)
    return [[each.astype(float) for each in results] for results in (found, wanted)]


@pytest.mark.parametrize(("dtype", "of_step"), [
    ("float32", "int64"), ("float64", "int32"), ("bfloat16", "int64"),
])  # fmt: skip
def test_adam_correction(dtype, of_step):
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype
    rate, step = g.input("rate", (), dtype), g.input("step", (), of_step)
    node = apply(AdamCorrection, rate, step, attributes=BetaAttributes(0.9, 0.999))
    for number in STEPS:
        feeds = {rate: np.array(1e-3, kind), step: np.array(number, of_step)}
        np.testing.assert_array_equal(*both(node, feeds))


@pytest.mark.parametrize("form", LEARNING_RATE_FORMS)
@pytest.mark.parametrize("warmup", [0, 9])
def test_learning_rate(form, warmup):
    step = g.input("step", (), "int64")
    attributes = LearningRateAttributes(form, 0.5, 0.01, 100, warmup, "float32")
    node = apply(LearningRate, step, attributes=attributes)
    for number in STEPS:
        np.testing.assert_array_equal(*both(node, {step: np.array(number)}))
