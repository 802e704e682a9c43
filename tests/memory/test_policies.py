"""The paper's policies: bytes, extra work, growth, and unchanged bits."""

import math

import numpy as np
import pytest
from properties.oracle import initial_states, run_unplanned, sources_of

import graphc as g
from graphc.memory import policies
from graphc.memory.allocate import Allocation
from graphc.memory.forward_cuts import cuts
from graphc.memory.order.forward_passes import forward_passes
from graphc.memory.policies import recursive, with_sequence
from graphc.memory.schedule import mirrored_sequence
from graphc.models import lstm, resnet
from graphc.passes.bulk import bulk_operators
from graphc.plans.check.check_plan import check_plan

MIB = 2**20
FORWARD = 0.34
"""A full extra forward pass is about a third of a step."""


def plan(loss, policy):
    return g.plan(loss, optimizer=g.optim.SGD(), recompute=policy)


LIMITS = [
    # network, policy, MiB of feature maps, extra flops
    pytest.param(lambda: resnet(50), "cheap", 2150, 0.01, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(200), "cheap", 6500, 0.01, marks=pytest.mark.slow),
    (lambda: resnet(50), "sublinear", 780, FORWARD),
    pytest.param(lambda: resnet(200), "sublinear", 1300, FORWARD, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(64), "sublinear", 100, FORWARD, marks=pytest.mark.slow),
    pytest.param(lambda: lstm(128), "sublinear", 140, FORWARD, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(1001), "cheap", 31000, 0.01, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(1001), "sublinear", 2900, FORWARD, marks=pytest.mark.slow),
    pytest.param(lambda: resnet(1001), "recursive", 1100, 2.0, marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("build", "policy", "mebibytes", "flops"), LIMITS)
def test_feature_maps_and_extra_work(build, policy, mebibytes, flops):
    found = plan(build(), policy)
    assert found.feature_map_bytes <= mebibytes * MIB
    assert 0 < found.recomputation.extra_flops_fraction <= flops


WIDTH, BATCH = 32, 64
MAP = WIDTH * BATCH * 4


def chain(layers):
    """Equal layers whose feature maps outweigh everything else."""
    h = g.input("x", (BATCH, WIDTH))
    for number in range(layers):
        with g.scope(f"layer{number}"):
            h = g.tanh(g.linear(h, WIDTH, bias=False))
    return g.mean(h)


@pytest.mark.parametrize(
    "layers", [16, 64, *(pytest.param(n, marks=pytest.mark.slow) for n in (256, 4096))]
)
def test_recursion_needs_the_logarithm(layers):
    """g(n) = log₂ n maps (Sec. 4.4) beside what one layer's gradient needs, for log₂ n forwards."""
    found = plan(chain(layers), "recursive")
    maps = found.feature_map_bytes / MAP
    assert abs(maps - (math.log2(layers) + WORKING_MAPS)) <= 2
    forwards = found.recomputation.extra_flops_fraction * 3
    assert abs(forwards - math.log2(layers) / 2) <= 1.5


@pytest.mark.parametrize(
    ("per_level", "layers"), [(2, 81), (3, 64), pytest.param(3, 256, marks=pytest.mark.slow)]
)
def test_more_checkpoints_a_level(per_level, layers):
    """g(n) = k log n / log(k + 1), Sec. 4.4."""
    graph = plan(chain(layers), "none").graph
    again = policies.recursive(graph, per_level)
    levels = math.log(layers) / math.log(per_level + 1)
    assert abs(max(again.values()) - levels) <= 1
    sequence = mirrored_sequence(graph, lambda node: again.get(node, 0))
    maps = Allocation(with_sequence(graph, sequence)).plan("packed").feature_map_bytes / MAP
    assert abs(maps - (per_level * levels + WORKING_MAPS)) <= 2


WORKING_MAPS = 2
"""A layer's own map and the gradient that comes to it."""


@pytest.mark.parametrize("layers", [16, 64, 256, pytest.param(1024, marks=pytest.mark.slow)])
def test_sublinear_needs_the_square_root(layers):
    found = plan(chain(layers), "sublinear")
    assert found.feature_map_bytes / MAP <= 2 * math.sqrt(layers) + 4
    assert found.recomputation.extra_flops_fraction <= FORWARD


def test_cheap_keeps_products_only():
    graph = plan(resnet(units=(1, 1, 1, 1), batch=2, image=36, classes=5), "cheap").graph
    again = {node.op.name for node in graph.nodes if node.phase == "mirror"}
    assert again <= {"batch_norm", "relu", "add", "max_pool2d", "average_pool2d", "reshape"}
    assert "batch_norm" in again


def segmented(parts, layers):
    h = g.input("x", (BATCH, WIDTH))
    for part in range(parts):
        with g.segment(f"part{part}"):
            for number in range(layers):
                with g.scope(f"part{part}/layer{number}"):
                    h = g.tanh(g.linear(h, WIDTH, bias=False))
    return g.mean(h)


def test_segments_keep_what_leaves_them():
    found = plan(segmented(4, 5), "segments")
    again = [node for node in found.graph.nodes if node.phase == "mirror"]
    # of five layers, the last map of each segment is kept
    assert len(again) == 4 * 4 * 2
    assert {node.segment for node in again} == {f"part{i}" for i in range(4)}
    assert found.feature_map_bytes < plan(segmented(4, 5), "none").feature_map_bytes
    assert plan(chain(20), "segments").recomputation.nodes == 0


def test_segments_nest_and_stand_in_the_text():
    with g.segment("outer"), g.segment("inner"):
        y = g.tanh(g.input("x", (2,)))
    assert y.node.segment == "outer/inner"
    text = g.format_graph(g.plan(outputs={"y": y}).graph)
    assert "[segment=outer/inner]" in text
    assert g.format_graph(g.parse_graph(text)) == text


@pytest.mark.parametrize("policy", ["cheap", "segments", "recursive"])
def test_micro_batches_are_treated_one_by_one(policy):
    plans = [
        g.plan(segmented(4, 4), optimizer=g.optim.SGD(), recompute=policy, accumulate=k)
        for k in (1, 3)
    ]
    assert plans[1].recomputation.nodes == 3 * plans[0].recomputation.nodes


def test_losses_stay_the_same():
    runs = []
    for policy in ("none", "cheap", "segments", "sublinear", "recursive"):
        x = g.input("x", (8, 3, 8, 8))
        h = x
        for number in range(4):
            with g.segment(f"s{number}"), g.scope(f"c{number}"):
                h = g.dropout(g.relu(g.batch_norm(g.conv2d(h, 4, 3, padding=1))), 0.2)
        loss = g.mean(h * h)
        program = g.compile(loss, optimizer=g.optim.Momentum(0.1), recompute=policy, poison=True)
        fed = np.random.default_rng(0).standard_normal((8, 3, 8, 8)).astype(np.float32)
        losses = [program.step(x=fed)["loss"].tobytes() for _ in range(3)]
        runs.append((losses, {name: a.tobytes() for name, a in program.states.items()}))
        assert policy == "none" or program.plan.recomputation.nodes > 0
    assert all(run == runs[0] for run in runs)


def test_a_segment_is_a_bulk_operator():
    """Fig. 4: run alone, by plans of their own, both sub-graphs give the whole step's bits."""
    found = plan(segmented(3, 4), "segments")
    graph = found.graph
    fed = np.random.default_rng(0).standard_normal((BATCH, WIDTH)).astype(np.float32)
    states = initial_states(graph)
    arrays = run_unplanned(graph, sources_of(graph, states, {"x": fed}))
    named = {"v" + name[1:].replace(".", "_"): value for value, name in graph.names.items()}
    operators = bulk_operators(graph)
    assert [operator.name for operator in operators] == ["part0", "part1", "part2"]
    for operator in operators:
        # one map enters and one leaves; what the gradient reads beside them is made again inside
        assert len(operator.forward.outputs) == 1
        assert {node.phase for node in operator.gradient.nodes} == {"mirror", "gradient"}
        for inner in (operator.forward, operator.gradient):
            sub = Allocation(inner).plan("packed")
            check_plan(sub)
            assert sub.live_bytes <= found.live_bytes
            program = g.Program(sub)
            program.parameters.update({state.name: states[state] for state in inner.states})
            feeds = {
                source.name: fed if source.name == "x" else arrays[named[source.name]]
                for source in inner.inputs
            }
            for name, array in program.step(feeds).items():
                np.testing.assert_array_equal(array, arrays[named[name]])


def test_marked_segments_are_the_candidates_of_sublinear():
    """Candidate cuts that the user gives: the ends of segments, and no others."""
    graph = plan(segmented(5, 3), "none").graph
    (run,) = forward_passes(graph)
    found = cuts(graph, run)
    assert len(found) == 5
    assert [cut.crossing[0].node.segment for cut in found] == [f"part{i}" for i in range(5)]
    assert all(graph.nodes[cut.step + 1].segment != f"part{i}" for i, cut in enumerate(found))
    again = plan(segmented(5, 3), "sublinear")
    assert 0 < again.feature_map_bytes < plan(segmented(5, 3), "none").feature_map_bytes


def test_sublinear_is_judged_at_the_alignment_asked_for():
    """Judge of what it tries: an allocator with that alignment, which does not know the policy.

    At 4 KiB a small map takes as much as a large one, so other cuts are the best.
    """
    differing = 0
    for seed in range(3):
        rng = np.random.default_rng(seed)
        h = g.input("x", (16, 8))
        for number, width in enumerate(rng.choice([1, 2, 4, 16, 64], 20).tolist()):
            with g.scope(f"layer{number}"):
                h = g.tanh(g.linear(h, width))
        asked = {"optimizer": g.optim.SGD(), "reorder": False, "kernels": "numpy"}
        graph = g.plan(g.mean(h), **asked).graph

        def live_bytes(counts, alignment, graph=graph):
            sequence = mirrored_sequence(graph, lambda node: counts.get(node, 0))
            return Allocation(with_sequence(graph, sequence), alignment=alignment).live_bytes

        best, other = (
            policies.sublinear(graph, lambda counts, a=alignment: live_bytes(counts, a))
            for alignment in (4096, 256)
        )
        found = g.plan(g.mean(h), recompute="sublinear", alignment=4096, **asked)
        assert found.live_bytes == live_bytes(best, 4096)
        differing += live_bytes(other, 4096) > found.live_bytes
    assert differing >= 2


def test_parts_of_an_uneven_split_have_the_level_that_they_lie_on():
    """By hand: six cuts part a chain at the third, then at the first and fifth, then elsewhere."""
    h = g.input("x", (2, 4)) * g.parameter("w", (2, 4))
    for _ in range(5):
        h = g.tanh(h)
    graph = g.plan(g.sum(h), optimizer=g.optim.SGD(), fuse=False).graph
    counts = recursive(graph, 1)
    forward = [node for node in graph.nodes if node.phase == "forward"]
    assert [counts[node] for node in forward] == [1, 2, 0, 2, 1, 2, 3]
