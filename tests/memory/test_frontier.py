"""The knee and the frontier of the curve of bytes against time, and plans within extra flops."""

import itertools

import pytest
from memory.networks import MODELS, least_bytes, parameters, plan
from models.test_zoo import SMALL

import graphc as g
from graphc.planner.goals import between, knee_of


@pytest.mark.parametrize("name", parameters(("gpt2",), ("unet", "resnet", "deeper gpt2")))
def test_more_work_allows_fewer_bytes(name):
    sizes = []
    for part in (0.0, 0.1, 0.33):
        found = plan(name, max_extra_flops=part)
        assert found.recomputation.extra_flops_fraction <= part
        sizes.append(found.arena_bytes)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < plan(name, reorder=False).arena_bytes
    assert sizes[0] <= plan(name).arena_bytes


@pytest.mark.parametrize(
    ("name", "allocate"),
    [
        ("gpt2", {}),
        *(
            pytest.param("preact_resnet", {"allocate": allocate}, marks=pytest.mark.slow)
            for allocate in ("packed", "none", "inplace", "sharing")
        ),
    ],
)
def test_more_flops_never_cost_bytes(name, allocate):
    plain = plan(name, **allocate).arena_bytes
    for options in ({"max_extra_flops": 0.1}, {"recompute": "optimal"}):
        assert plan(name, **allocate, **options).arena_bytes <= plain


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lstm", "resnet"])
def test_the_knee_and_the_frontier(name):
    knee = plan(name, recompute="optimal", reorder=False)
    assert knee.certificate.goal == "knee of the curve"
    points = g.frontier(MODELS[name](), optimizer=g.optim.SGD(), reorder=False)
    plain = plan(name, reorder=False)
    assert points[-1].arena_bytes == plain.arena_bytes
    assert points[0].arena_bytes == least_bytes(name, budget=1, reorder=False)
    for before, after in itertools.pairwise(points):
        assert before.arena_bytes < after.arena_bytes
        assert before.extra_time_fraction > after.extra_time_fraction
        assert before.extra_time_bound <= before.extra_time_fraction
    # at the knee most of the bytes are saved for little of the time
    saved = (plain.arena_bytes - knee.arena_bytes) / (plain.arena_bytes - points[0].arena_bytes)
    spent = knee.recomputation.extra_time_fraction / points[0].extra_time_fraction
    assert saved > 2 * spent


@pytest.mark.slow
def test_the_knee_where_an_order_saves_as_much():
    """Nothing is computed again for what the order saves alone."""
    kept = plan("resnet", recompute="optimal", reorder=False)
    assert plan("resnet").arena_bytes < kept.arena_bytes
    found = plan("resnet", recompute="optimal")
    assert found.recomputation.nodes == 0
    ends = g.frontier(MODELS["resnet"](), optimizer=g.optim.SGD())
    assert ends[-1].arena_bytes == found.arena_bytes
    assert ends[0].arena_bytes == least_bytes("resnet")


def test_a_budget_of_the_first_point_costs_no_more_than_that_point():
    """No schedule of corrected capacities fits into these bytes; one of the lowest peaks does."""
    options = {"optimizer": g.optim.Adam()}
    first = g.frontier(SMALL["gpt2 composed"](), **options)[0]
    found = g.plan(SMALL["gpt2 composed"](), budget=first.arena_bytes, **options)
    assert found.recomputation.extra_time_fraction <= first.extra_time_fraction


def residual_network():
    """A small network with shortcuts; that of the tutorial."""
    images, labels = g.input("images", (64, 3, 32, 32)), g.input("labels", (64,), "int32")
    h = g.relu(g.conv2d(images, 16, 3, padding=1))
    for filters in (32, 64, 128):
        inner = g.relu(g.batch_norm(g.conv2d(h, filters, 3, stride=2, padding=1)))
        inner = g.batch_norm(g.conv2d(inner, filters, 3, padding=1))
        h = g.relu(inner + g.conv2d(h, filters, 1, stride=2))
    return g.softmax_cross_entropy(g.linear(g.global_average_pool2d(h), 10), labels)


@pytest.mark.parametrize(
    ("network", "optimizer"),
    [(SMALL["vgg16"], g.optim.SGD()), (residual_network, g.optim.Adam())],
)
def test_a_budget_costs_no_more_than_the_frontier_within_it(network, optimizer):
    """Arenas of small networks are not smooth: a larger budget alone may find a slower plan."""
    points = g.frontier(network(), optimizer=optimizer)
    assert len(points) >= 4
    for point, larger in itertools.pairwise(points):
        most = (point.arena_bytes + 3 * larger.arena_bytes) // 4
        for budget in (point.arena_bytes, most):
            found = g.plan(network(), optimizer=optimizer, budget=budget)
            assert found.recomputation.extra_time_fraction <= point.extra_time_fraction


def test_the_price_of_the_smallest_plan_is_the_least_known_for_its_bytes():
    options = {"optimizer": g.optim.Adam()}
    with pytest.raises(g.errors.BudgetError, match=r"\+\d+\.\d% time, another") as refused:
        g.plan(SMALL["vgg16"](), budget=1, **options)
    least = g.plan(SMALL["vgg16"](), budget=refused.value.least_bytes, **options)
    price = least.recomputation.extra_time_fraction
    assert f"with {price:+.1%} time, another" in str(refused.value)


@pytest.mark.parametrize(
    ("curve", "knee"),
    [
        ([(100, 0.0), (60, 1.0), (40, 3.0), (30, 10.0)], 40),
        ([(100, 0.0), (60, 1.0), (40, 4.0), (30, 10.0)], 60),
        ([(100, 0.0), (90, 0.1), (30, 10.0)], 90),
    ],
)
def test_the_knee_is_the_point_farthest_from_the_chord(curve, knee):
    """Distances from the line between both ends, by hand: (100, 0) to (30, 10)."""
    assert knee_of(curve, 100) == knee


def test_budgets_of_a_frontier_lie_between_the_least_and_the_most():
    """The mean of equal steps in bytes and of equal steps in their logarithm."""
    parts = [i / 15 for i in range(1, 15)]
    expected = [int((1000 + 3000 * p + 1000 * 4.0**p) / 2) for p in parts]
    assert list(between(1000, 4000, 16)) == expected
