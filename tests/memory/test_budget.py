"""Plans by budget: bytes that hold, work that is bounded on both sides, and errors that help."""

import re

import numpy as np
import pytest
from hypothesis import given as each_of
from hypothesis import strategies as st
from memory.networks import MODELS, least_bytes, parameters, plan, planned
from properties.strategies import examples, networks

import graphc as g
from graphc.byte_sizes import parse_bytes
from graphc.compiler import pipeline
from graphc.compiler.compilation import Compilation, run, traced
from graphc.compiler.options import PlanOptions, RecomputeOptions
from graphc.compiler.pipeline import planner
from graphc.errors import BudgetError, OptionError
from graphc.ir.builder import trace
from graphc.memory.allocate import Allocation
from graphc.memory.training_graph import TrainingGraph
from graphc.models import lstm
from graphc.plans.check.check_plan import check_plan
from graphc.plans.goal import Goal

QUICK = ("gpt2",)


@pytest.mark.parametrize("name", parameters(QUICK, [name for name in MODELS if name not in QUICK]))
def test_budgets_hold_and_more_bytes_cost_less(name):
    others = [plan(name, recompute=p) for p in ("none", "cheap", "sublinear", "recursive")]
    least, most = least_bytes(name), others[0].arena_bytes
    last = None
    for budget in np.linspace(least, most, 3).astype(int).tolist():
        found = plan(name, budget=budget)
        check_plan(found)
        extra = found.recomputation.extra_time_fraction
        assert found.bound_bytes <= found.live_bytes <= found.arena_bytes <= budget
        assert found.certificate.extra_time_bound <= extra + 1e-9
        fitting = [o.recomputation.extra_time_fraction for o in others if o.arena_bytes <= budget]
        assert extra <= min(fitting, default=extra) + 1e-9
        assert last is None or extra <= last + 1e-9
        last = extra
    assert last == 0
    assert plan(name, budget=most).recomputation.nodes == 0


@pytest.mark.parametrize(
    "name", parameters(("gpt2",), ("lstm", "resnet", "deeper gpt2", "longer lstm"))
)
def test_feature_map_budgets_hold(name):
    most = plan(name).feature_map_bytes
    for part in (0.9, 0.5):
        found = plan(name, feature_map_budget=int(part * most))
        assert found.feature_map_bytes <= part * most
        assert 0 < found.certificate.extra_time_bound <= found.recomputation.extra_time_fraction


def largest_at_peak(found):
    """The node at a plan's peak, and the bytes of the largest buffers there."""
    live = [buffer.bytes for buffer in found.live_at(found.peak_step)]
    return found.graph.nodes[found.peak_step].label, live


def named_sizes(error):
    """The bytes of the buffers that an error names, without gaps."""
    return [size for name, size in error.values if name != "gaps between buffers"]


@pytest.mark.slow
def test_an_infeasible_budget_says_what_would_do():
    with pytest.raises(BudgetError) as caught:
        plan("unet", budget="100KiB")
    error = caught.value
    found = plan("unet", budget=error.least_bytes)
    assert found.arena_bytes == error.least_bytes
    assert error.bound_bytes == found.bound_bytes
    node, largest = largest_at_peak(found)
    assert error.node == node
    named = named_sizes(error)
    assert named == largest[: len(named)]
    price = f"with {found.recomputation.extra_time_fraction:+.1%} time"
    sizes = f"{error.least_bytes:,}", f"{error.bound_bytes:,}"
    told = (price, *sizes, error.node, error.values[0][0])
    for part in told:
        assert part in str(error)
    with pytest.raises(BudgetError, match="feature maps fit"):
        plan("unet", feature_map_budget=1)


def test_an_infeasible_budget_lists_the_values_at_the_peak_one_per_line():
    x = g.input("x", (64, 32))
    with g.scope("layer"):
        h = g.relu(g.linear(x, 256))
    loss = g.mean(h * h)
    with pytest.raises(BudgetError) as caught:
        g.plan(loss, optimizer=g.optim.SGD(0.1), budget=1)
    head, *lines = str(caught.value).splitlines()
    assert head.endswith(f"Largest buffers at the peak of this plan, {caught.value.node}:")
    assert any(re.fullmatch(r" +64\.00 KiB  layer/\w+: %\d+(, %\d+)?", line) for line in lines)
    assert any(re.fullmatch(r" +32\.00 KiB  @layer/weight.*", line) for line in lines)
    assert re.fullmatch(r" +[\d.]+ \w+  in \d+ more", lines[-1]) or len(lines) <= 6
    assert len(caught.value.values) == 6


def sum_of_lines(error):
    sizes = [line.split("  ") for line in str(error).splitlines()[1:]]
    return sum(parse_bytes("a line", next(part for part in parts if part)) for parts in sizes)


def test_the_lines_of_an_infeasible_budget_add_up_to_its_bytes():
    """The gradient of a convolution has a large workspace."""
    images = g.conv2d(g.input("x", (2, 16, 16, 16)), 16, 3)
    loss = g.mean(g.conv2d(images, 16, 3) ** 2)
    with pytest.raises(BudgetError, match="workspace of") as caught:
        g.plan(loss, optimizer=g.optim.SGD(), budget=1, device="cuda")
    assert sum_of_lines(caught.value) == pytest.approx(caught.value.least_bytes, rel=0.01)


ON_CUDA = {"device": "cuda"}
AT_8_KIB = {"alignment": 8192, "kernels": "numpy"}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt2", ON_CUDA),
        ("unet", AT_8_KIB),
        pytest.param("unet", ON_CUDA, marks=pytest.mark.slow),
        pytest.param("preact_resnet", ON_CUDA, marks=pytest.mark.slow),
    ],
)
def test_an_infeasible_budget_names_values_of_the_device_and_alignment_asked_for(name, options):
    """Those at the peak of that very plan, where the CPU's own would name others."""
    with pytest.raises(BudgetError) as caught:
        plan(name, budget=1, **options)
    error = caught.value
    found = plan(name, budget=error.least_bytes, **options)
    assert found.arena_bytes == error.least_bytes
    node, largest = largest_at_peak(found)
    named = named_sizes(error)
    assert (error.node, named) == (node, largest[: len(named)])
    on_cpu, others = largest_at_peak(Allocation(found.graph).plan("packed"))
    assert (error.node, named) != (on_cpu, others[: len(named)])


def test_the_bound_is_the_widest_steps_bytes():
    """By hand: one linear layer's update has weight, gradient and nothing else to hold."""
    x = g.input("x", (64, 64))
    loss = g.mean(g.linear(x, 64, bias=False))
    found = g.plan(loss, optimizer=g.optim.SGD(), recompute="optimal", kernels="numpy")
    size = 64 * 64 * 4
    # the forward product: weight, input and result
    assert 3 * size <= found.bound_bytes <= found.arena_bytes <= 3 * size + 2048


@pytest.mark.slow
def test_budgets_with_micro_batches_clipping_and_sixteen_bits():
    for options in (
        {"accumulate": 3},
        {"clip_norm": 1.0},
        {"precision": "bf16"},
        {"accumulate": 2, "precision": "fp16", "clip_norm": 1.0},
    ):
        most = plan("gpt2", **options).arena_bytes
        with pytest.raises(BudgetError) as caught:
            plan("gpt2", budget=1, **options)
        budget = (most + caught.value.least_bytes) // 2
        found = plan("gpt2", budget=budget, **options)
        assert found.arena_bytes <= budget < most
        assert found.recomputation.nodes > 0


def test_budgets_hold_for_recycled_blocks():
    most = plan("preact_resnet", allocate="sharing").arena_bytes
    found = plan("preact_resnet", allocate="sharing", budget=int(0.9 * most))
    assert found.arena_bytes <= 0.9 * most


@pytest.mark.slow
def test_where_nothing_is_shared_recomputation_cannot_help():
    most = plan("preact_resnet", allocate="none").arena_bytes
    with pytest.raises(BudgetError) as caught:
        plan("preact_resnet", allocate="none", budget=most - 1)
    assert caught.value.least_bytes == most


def test_same_input_same_plan():
    again = planned("gpt2", max_extra_flops=0.1)
    assert again.text() == plan("gpt2", max_extra_flops=0.1).text()


def test_kept_values_are_never_made_again():
    def network():
        h = g.input("x", (256, 64))
        for number in range(12):
            with g.scope(f"layer{number}"):
                h = g.tanh(g.linear(h, 64, bias=False))
                if number == 5:
                    g.keep(h)
        return g.mean(h)

    options = {"max_extra_flops": 0.33, "kernels": "numpy"}
    found = g.plan(network(), optimizer=g.optim.SGD(), **options)
    again = {n.copy_of.label for n in found.graph.nodes if n.phase == "mirror"}
    assert again
    assert "layer5/tanh" not in again
    # what is kept lives to its last reader, not to the end of the step
    graph_steps = TrainingGraph(
        Allocation(found.graph, alignment=found.alignment),
        lambda node: 0.0,
        feature_maps_only=False,
    )
    assert graph_steps.steps.peak(range(len(graph_steps.steps))) == found.live_bytes


@pytest.mark.slow
def test_costs_decide_what_is_made_again():
    """Where a convolution is free, it is what is made again."""
    costs = g.profile(plan("preact_resnet"), repeat=1)
    free = [
        type(entry)(entry.key, entry.op, 0.0, entry.count, entry.flops, entry.bytes)
        if entry.op == "conv2d"
        else entry
        for entry in costs.measured
    ]
    given = g.MeasuredCosts(costs.device, tuple(free))
    budget = int(0.6 * plan("preact_resnet").arena_bytes)
    counts = []
    for chosen in (None, given):
        found = planned("preact_resnet", budget=budget, costs=chosen)
        again = [n.op.name for n in found.graph.nodes if n.phase == "mirror"]
        counts.append(again.count("conv2d"))
        assert found.arena_bytes <= budget
    assert counts[1] > counts[0]


def test_goals():
    assert RecomputeOptions().goal is None
    assert RecomputeOptions(budget="1KiB").goal == Goal(budget=1024)
    assert RecomputeOptions(feature_map_budget=5).goal == Goal(feature_map_budget=5)
    assert RecomputeOptions(max_extra_flops=1).goal == Goal(max_extra_flops=1.0)
    for given in (
        {"budget": "1KiB", "feature_map_budget": 5},
        {"budget": -1},
        {"budget": True},
        {"max_extra_flops": "much"},
    ):
        with pytest.raises(OptionError):
            RecomputeOptions(**given)


@pytest.mark.parametrize("where", ["output", "keep"])
def test_values_that_stay_beside_a_chain(where):
    h, outputs = g.input("x", (256, 32)), {}
    for number in range(12):
        with g.scope(f"layer{number}"):
            a = g.linear(h, 32)
            if number == 5 and where == "keep":
                g.keep(a)
            elif number == 5:
                outputs["a"] = a
            h = (g.tanh(a) + a) * 0.5
    found = g.plan(g.mean(h), outputs=outputs, optimizer=g.optim.SGD(), max_extra_flops=0.3)
    again = {node.copy_of.label for node in found.graph.nodes if node.phase == "mirror"}
    assert again
    assert not any(label.startswith("layer5/") and "linear" in label for label in again)


@pytest.mark.parametrize("allocate", parameters(["packed"], ["none", "inplace"]))
@pytest.mark.parametrize("budget", parameters([0], [1]))
def test_no_bytes_at_all_end_in_an_error(allocate, budget):
    for option in ("budget", "feature_map_budget"):
        with pytest.raises(BudgetError):
            plan("gpt2", allocate=allocate, **{option: budget})


@pytest.mark.parametrize(
    "network", [MODELS["lstm"], pytest.param(MODELS["unet"], marks=pytest.mark.slow)]
)
def test_a_budget_of_the_whole_arena_gives_the_plan_without_one(network):
    """On a GPU, where a plan without recomputation has larger fused groups."""
    plain = g.plan(network(), optimizer=g.optim.SGD(), device="h200")
    for budget in (plain.arena_bytes, 2**50):
        found = g.plan(network(), optimizer=g.optim.SGD(), device="h200", budget=budget)
        assert [node.label for node in found.graph.nodes] == [n.label for n in plain.graph.nodes]
        assert found.arena_bytes == plain.arena_bytes


def test_a_network_with_copies_of_the_users_own_is_planned():
    x = h = g.input("x", (64, 64))
    for index in range(6):
        h = g.tanh(g.linear(h, 64, name=f"layer{index}"))
    gradient = g.gradient(g.mean(h), [x], mirror=lambda node: int(node.op.name == "tanh"))[0]
    graph = trace({"gradient": gradient})
    assert any(node.copy_of is not None for node in graph.nodes)
    options = PlanOptions(g.mean(h), optimizer=g.optim.SGD(), budget=1)
    found = planner(graph, Compilation(options))
    tight = found.least.arena_bytes
    for budget in (tight, 2 * tight):
        assert found.within(budget).arena_bytes <= budget


@examples(20)
@each_of(networks(), st.lists(st.floats(0, 1), min_size=2, max_size=2))
def test_budgets_of_random_networks_hold_whatever_was_planned_before(network, parts):
    options = PlanOptions(network.loss, optimizer=g.optim.SGD(), budget=1)
    compilation = Compilation(options)
    graph = run(traced(options), pipeline.before("recompute"), compilation)
    used = planner(graph, compilation)
    least = used.least.arena_bytes
    most = min(point.arena_bytes for point in used._plain_points())
    for part in parts:
        budget = least + round(part * (most - least))
        found = used.within(budget)
        assert found.arena_bytes <= budget
    fresh = planner(graph, compilation).within(budget)
    assert [node.label for node in fresh.graph.nodes] == [n.label for n in found.graph.nodes]


def recurrent():
    """Three layers of an LSTM over twelve times, whose weights are most of what they need."""
    return lstm(seq_len=12, batch=4, layers=3, hidden=64, inputs=8, classes=16)


@pytest.mark.slow
def test_layers_over_time_one_after_another_have_the_same_bits_in_fewer_bytes():
    rng = np.random.default_rng(0)
    batch = {"x": rng.standard_normal((12, 4, 8), "float32")}
    batch["labels"] = rng.integers(0, 16, (12, 4), "int32")
    # In the order over time, the least found is 879,872 bytes (test below).
    programs = [
        g.compile(recurrent(), optimizer=g.optim.SGD(0.5), seed=1, **options)
        for options in ({}, {"budget": 650_000}, {"recompute": "sublinear"})
    ]
    assert programs[1].plan.arena_bytes <= 650_000
    for _ in range(3):
        one, *others = [program.step(**batch)["loss"].tobytes() for program in programs]
        assert others == [one, one]
    one, *others = [
        {name: value.tobytes() for name, value in program.parameters.items()}
        for program in programs
    ]
    assert others == [one, one]


@pytest.mark.slow
def test_the_least_arena_of_an_lstm_is_a_fifth_below_that_in_the_order_over_time():
    found = []
    for reorder in (True, False):
        with pytest.raises(BudgetError) as caught:
            g.plan(recurrent(), optimizer=g.optim.SGD(), budget=1, reorder=reorder)
        found.append(caught.value.least_bytes)
    assert found[0] < 0.8 * found[1]
