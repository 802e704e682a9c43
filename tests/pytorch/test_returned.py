"""Modules that return aliases, duplicates, views, parameters and written buffers: their peaks."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch_cases.returning import (  # noqa: E402
    ALIASES,
    ROWS,
    SOURCES,
    VALUE,
    VIEWS,
    WIDTH,
    WRITES,
    Module,
    module_of,
)
from torch_cases.steps import SLACK  # noqa: E402

import graphc  # noqa: E402
from graphc.torch.budget.check.returned import JOINS_IN_PLACE  # noqa: E402
from graphc.torch.versions import is_before  # noqa: E402


def check(module, **goal):
    goal = goal or {"budget": "knee"}
    step = graphc.torch.plan(module, (x := torch.randn(ROWS, WIDTH),), **goal)
    found = step.verify(x)
    assert found.same_bits, found
    assert found.measured_peak_bytes <= found.planned_peak_bytes, found
    assert found.held, found
    viewed = {place for name, place in module.returned if name in VIEWS}
    spare = len(viewed) * VALUE
    if is_before(torch.__version__, JOINS_IN_PLACE):
        spare += len(module.returned) * VALUE
    slack = max(SLACK, found.planned_peak_bytes // 100)
    assert found.planned_peak_bytes - found.measured_peak_bytes <= spare + slack, found
    assert step.plans[-1].replay.peak.bytes == found.planned_peak_bytes
    return found


CLASSES = {
    "duplicate": ["twice", "in a dict", "identity"],
    "alias": ["contiguous", "float", "no dropout"],
    "view": ["transposed", "flat"],
    "padded view": ["row", "columns", "part of a row"],
    "traced in one storage": ["split"],
    "copied to the traced strides": ["chunk"],
    "parameter": ["parameter", "unused parameter", "view of a parameter", "row of a parameter"],
}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if number else ())
        for names in CLASSES.values()
        for number, name in enumerate(names)
    ],
)
def test_gradients_of_what_is_returned_are_counted(name):
    """Together with the value that they alias or view."""
    check(Module(0, [("itself", 0), (name, 0)], []), max_extra_time=0.0)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "slice" else pytest.mark.slow) for name in WRITES],
)
def test_a_written_buffer_is_not_counted_in_the_backward_pass(name):
    check(Module(1, [("itself", 1)], [name]), max_extra_time=0.0)


def test_a_budget_holds_with_a_duplicate():
    budget = 42 << 20
    found = check(Module(2, [("twice", 2)], []), budget=budget)
    assert found.measured_peak_bytes <= budget


def test_values_that_are_no_tensors_are_returned():
    class Counted(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x), None, 3, "three"

    module = Counted(4, 4)
    step = graphc.torch.plan(module, (x := torch.randn(2, 4),), "knee")
    found, *others = step(x)
    assert torch.equal(found, module(x)[0])
    assert others == [None, 3, "three"]


@pytest.mark.parametrize("seed", range(2))
def test_peaks_of_random_modules(seed):
    check(module_of(seed), max_extra_time=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 200, 10))
def test_peaks_of_200_random_modules(first):
    for seed in range(first, first + 10):
        torch.compiler.reset()
        check(module_of(seed), max_extra_time=0.1 * (seed % 4))


def test_all_rules_are_drawn():
    names = {name for seed in range(200) for name, _ in module_of(seed).returned}
    assert names == {*ALIASES, *VIEWS, *SOURCES}


class WithNone(torch.nn.Linear):
    def forward(self, x):
        return {"loss": super().forward(x).sum(), "states": ((None, x + 1), None)}


def test_none_among_outputs_is_no_tensor():
    x = torch.randn(4, 8)
    step = graphc.torch.plan(WithNone(8, 8), (x,), "knee")
    assert step.verify().held
    assert step(x)["states"][0][0] is None
