"""States in host memory on an emulated GPU, whose streams run in any order that events allow."""

import pytest
from runtime.emulated_gpu.networks import (
    bits,
    fed,
    on_gpu,
    small_convolutions,
    small_gpt2,
    small_mlp,
    trained,
)
from runtime.states_on_host import planned

import graphc as g

CASES = {
    "gpt2": (small_gpt2, {}),
    "clip and accumulate": (
        small_mlp,
        {"optimizer": g.optim.AdamW(), "accumulate": 2, "clip_norm": 1.0},
    ),
    "filters": (small_convolutions, {"optimizer": g.optim.SGD(0.1, momentum=0.9)}),
    "loss scale": (lambda: small_mlp("float32"), {"precision": "fp16"}),
    "recompute": (small_gpt2, {"recompute": "sublinear"}),
}


@pytest.mark.parametrize("case", CASES)
def test_states_on_the_host_change_no_bit(case):
    network, options = CASES[case]
    options = {"optimizer": g.optim.Adam(1e-2), **options}
    expected = trained(g.plan(network(), device="cuda", **options), 4)[:2]
    plan = planned(network(), device="cuda", **options)
    assert plan.host_state_bytes
    for seed in range(2):
        *found, device = trained(plan, 4, seed)
        assert tuple(found) == expected
        assert device.counts["captures"] == 1
        assert device.allocations == [plan.arena_bytes]
    for debugging in ({"poison": True}, {"check_finite": True}):
        *found, _ = trained(plan, 4, **debugging)
        assert tuple(found) == expected


def test_states_on_the_host_are_assigned_between_steps():
    plain, _ = on_gpu(g.plan(small_mlp(), optimizer=g.optim.Adam(1e-2), device="cuda"))
    program, _ = on_gpu(planned(small_mlp(), device="cuda"))
    for step in range(3):
        for each in (plain, program):
            each.step(fed(program.plan, step))
            for name in each.states:
                if name.startswith("adam/m"):
                    each.states[name] = each.states[name] * 0.5
        assert bits(plain) == bits(program)
