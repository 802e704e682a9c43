"""Plans of real classes: bits, peaks and budgets; and the classes that cannot be planned."""

from importlib.util import find_spec

import pytest

from graphc.errors import GraphcError

torch = pytest.importorskip("torch", reason="torch is not installed")
LIBRARIES = "transformers", "timm", "torchvision", "diffusers", "peft"
if not all(map(find_spec, LIBRARIES)):  # importing them takes seconds
    pytest.skip(f"requires {', '.join(LIBRARIES)}", allow_module_level=True)
registry = pytest.importorskip("pytorch.real.registry")
runs = pytest.importorskip("pytorch.real.runs")
steps = pytest.importorskip("torch_cases.steps")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.peers,
    pytest.mark.filterwarnings("default"),  # those of the libraries are not graphc's
]

PLANNED = [name for name in registry.CLASSES if name not in registry.REFUSED]


def check(run, budget, wanted):
    """A step has the bits of a reference, one plan, and the planned peak within the budget."""
    found = run.bits()
    has_same_bits = [] in [steps.different(found, each) for each in wanted]
    assert has_same_bits or run.step.verify().same_bits  # whose aot_eager has one graph
    planned, measured = run.report.peak_bytes, run.peak()
    assert planned <= budget
    assert measured <= budget
    assert abs(measured - planned) <= max(planned // 100, steps.SLACK), (measured, planned)
    assert len(run.step.plans) == 1


@pytest.mark.parametrize("name", PLANNED)
def test_three_budgets_hold_with_the_bits_of_aot_eager(name):
    make = registry.CLASSES[name]
    knee = runs.planned(runs.new(make))
    # Where its graph breaks, aot_eager may round otherwise than eager torch and one graph do.
    wanted = [each(runs.new(make)).bits() for each in (runs.by_aot_eager, runs.eager)]
    check(knee, knee.report.peak_bytes, wanted)
    for budget in runs.budgets_below(knee.report).values():
        check(runs.planned(runs.new(make), budget), budget, wanted)


@pytest.mark.parametrize("name", registry.REFUSED)
def test_refused_classes_fail_at_the_listed_place(name):
    with pytest.raises(GraphcError, match=registry.REFUSED[name].place):
        runs.planned(runs.new(registry.CLASSES[name]))


def test_the_registry_has_at_least_95_percent_planned_of_55_classes():
    assert len(registry.CLASSES) >= 55
    assert len(PLANNED) >= 0.95 * len(registry.CLASSES)
