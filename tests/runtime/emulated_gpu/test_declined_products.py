"""Products that cuBLASLt has no algorithm for: kernels compute them, or what follows them."""

import numpy as np
import pytest
from runtime.emulated_gpu.emulated import EmulatedDevice
from runtime.emulated_gpu.networks import SEED, fed, small_mlp

import graphc as g
from graphc import Program
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.bind import BoundGemm


def has_epilogue(gemm):
    return gemm.epilogue != "none"


def is_wide(gemm):
    return gemm.m == 8


def sizes(gemm):
    return gemm.m, gemm.n, gemm.k, gemm.batch


DECLINED = {
    "no epilogues": has_epilogue,
    "one shape with an epilogue": lambda gemm: has_epilogue(gemm) and is_wide(gemm),
    "one shape": is_wide,
    "no product": lambda gemm: True,
}


@pytest.mark.parametrize("declined", DECLINED)
def test_declined_products_are_computed_by_kernels(declined):
    """For the nodes of that shape alone, and told once."""
    plan = g.plan(small_mlp("float32"), optimizer=g.optim.SGD(0.1), device="cuda")
    runs = []
    for declines in (None, DECLINED[declined]):
        device = EmulatedDevice()
        if declines is None:
            program = Program(plan, SEED, backend=GpuBackend(plan, device))
        else:
            device.declines = declines
            with pytest.warns(UserWarning, match="cuBLASLt has no algorithm for a float32") as told:
                backend = GpuBackend(plan, device)
            assert len(told) == 1
            program = Program(plan, SEED, backend=backend)
            assert not any(declines(call.gemm) for call, _ in device.bound.values())
        program.step(fed(plan))
        works = program._backend._works
        products = [c.gemm for work in works for c in work.calls if isinstance(c, BoundGemm)]
        runs.append((dict(program.states), device.counts["calls"], products))
    (served, few, products), (apart, many, others) = runs
    assert few < many or len(others) < len(products)
    kept = {"one shape": lambda gemm: not is_wide(gemm), "no product": lambda gemm: False}
    is_kept = kept.get(declined, lambda gemm: True)
    assert [sizes(gemm) for gemm in others] == [sizes(gemm) for gemm in products if is_kept(gemm)]
    fused = [gemm for gemm in products if has_epilogue(gemm)]
    assert sum(map(has_epilogue, others)) == sum(not DECLINED[declined](gemm) for gemm in fused)
    for name, array in served.items():
        np.testing.assert_allclose(apart[name], array, rtol=1e-5, atol=1e-6)


def test_a_declined_product_ends_no_test():
    """Under this project's filters, by which warnings are errors, a slower kernel is none."""
    plan = g.plan(small_mlp("float32"), optimizer=g.optim.SGD(0.1), device="cuda")
    device = EmulatedDevice()
    device.declines = is_wide
    assert GpuBackend(plan, device).report.declined
