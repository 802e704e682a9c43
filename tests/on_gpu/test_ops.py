"""Every op on both devices, in float32 against float64 on the CPU."""

from dataclasses import replace

import numpy as np
import pytest
from ops.samples import SAMPLES
from ops.test_every_op import build

import graphc as g


def in_float32(sample):
    """The sample in float32; as it is where what is computed depends on an element's bytes."""
    if sample.op == "bitcast":
        return sample
    dtypes = tuple(
        "float32" if sample.dtype(i) == "float64" else sample.dtype(i)
        for i in range(len(sample.shapes))
    )
    return replace(sample, dtypes=dtypes)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_op_equals_the_cpu(sample):
    _, feeds, outputs = build(sample)
    expected = g.compile(outputs=outputs, training=True).step(feeds)
    _, narrow, outputs = build(in_float32(sample))
    program = g.compile(outputs=outputs, training=True, device="cuda", poison=True)
    found = program.step(narrow)
    for name, wide in expected.items():
        reach = 1e-5 * max(1.0, float(np.abs(np.asarray(wide, np.float64)).max(initial=0)))
        np.testing.assert_allclose(
            found[name].astype(np.float64), wide.astype(np.float64), rtol=1e-5, atol=reach
        )
