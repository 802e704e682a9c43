"""Updates that wait for each other: fewer launches, bounded bytes, the same results."""

import pytest

import graphc as g
from graphc.codegen.elementwise.updates import groups, likeness
from graphc.devices.device import DEVICES
from graphc.ir.builder import apply
from graphc.ir.graph import Graph, Initial, State
from graphc.ir.types import TensorType, float32
from graphc.ir.verify import verify
from graphc.memory.allocate import Allocation
from graphc.memory.order.updates_together import GROWTH, updates_together
from graphc.models import MODELS
from graphc.ops.update import SgdAttributes, SgdUpdate
from graphc.plans.goal import Goal
from graphc.runtime.gpu.places import places_of_plan
from graphc.target import target_of

H200 = DEVICES["h200"]
OPTIMIZERS = [g.optim.SGD(0.1), g.optim.Momentum(0.1), g.optim.Adam(1e-3), g.optim.AdamW(1e-3)]


def launches(plan):
    """Launches of small updates, and how many small updates there are."""
    places = places_of_plan(plan)
    nodes = [
        node
        for node in plan.graph.nodes
        if not all(plan.placements[value].how == "view" for value in node.outputs)
    ]
    found = [group for group in groups(nodes, places) if likeness(group[0]) is not None]
    return len(found), sum(map(len, found))


def apart(monkeypatch, network, **options):
    """The plan in the order that is found without this pass."""
    with monkeypatch.context() as patch:
        patch.setattr("graphc.compiler.pipeline.updates_together", lambda given, *_: given)
        return g.plan(network, device="cuda", **options)


NETWORKS = {
    "resnet": (lambda: MODELS["resnet"](units=(1, 2, 1, 1), batch=16, image=64), 12),
    "gpt2": (lambda: MODELS["gpt2"](layers=2, batch=1), 3),
}


@pytest.mark.parametrize(
    ("name", "recompute"),
    [
        ("gpt2", "none"),
        ("gpt2", "sublinear"),
        pytest.param("resnet", "none", marks=pytest.mark.slow),
        pytest.param("resnet", "sublinear", marks=pytest.mark.slow),
    ],
)
def test_a_network_needs_few_launches(name, recompute, monkeypatch):
    network, most = NETWORKS[name]
    options = {"optimizer": g.optim.Adam(1e-3), "recompute": recompute}
    before = apart(monkeypatch, network(), **options)
    plan = g.plan(network(), device="cuda", **options)
    few, updates = launches(plan)
    many, as_many = launches(before)
    assert as_many == updates
    assert few <= most < updates / 2 < many
    assert plan.arena_bytes <= (1 + GROWTH) * before.arena_bytes


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda optimizer: type(optimizer).__name__)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_only_updates_move(optimizer, precision, monkeypatch):
    def network():
        return MODELS["mlp"](layers=6, hidden=16, inputs=7, classes=3, batch=2048)

    options = {"optimizer": optimizer, "precision": precision, "clip_norm": 1.0}
    separate = apart(monkeypatch, network(), **options)
    before = separate.graph
    graph = updates_together(Allocation(before, target_of(H200))).graph
    verify(graph)
    assert set(graph.nodes) == set(before.nodes)
    assert graph.nodes != before.nodes
    others = [node for node in before.nodes if likeness(node) is None]
    assert [node for node in graph.nodes if likeness(node) is None] == others
    small = len(before.nodes) - len(others)
    assert small >= sum(state.role == "parameter" for state in before.states) == 14
    few, updates = launches(g.plan(network(), device="cuda", **options))
    many, as_many = launches(separate)
    assert updates == as_many == small
    assert 0 < few <= 5
    if precision == "fp32":  # else all updates wait for the loss scale, and are together already
        assert few < many / 2


def test_plans_for_a_cpu_stay(monkeypatch):
    def never(*_):
        raise AssertionError("a CPU has no launches to save")

    monkeypatch.setattr("graphc.compiler.pipeline.updates_together", never)
    g.plan(MODELS["mlp"](), optimizer=g.optim.Adam(1e-3))
    g.plan(MODELS["mlp"](), optimizer=g.optim.Adam(1e-3), device="cuda", reorder=False)
    with pytest.raises(AssertionError, match="no launches to save"):
        g.plan(MODELS["mlp"](), optimizer=g.optim.Adam(1e-3), device="cuda")


@pytest.mark.parametrize("goal", ["budget", "feature_map_budget", "max_extra_flops"])
@pytest.mark.parametrize("model", ["mlp", pytest.param("resnet", marks=pytest.mark.slow)])
def test_goals_hold(model, goal, monkeypatch):
    def network():
        if model == "resnet":
            return MODELS["resnet"](units=(1, 1, 1, 1), batch=32, image=64)
        return MODELS["mlp"](layers=6, hidden=16, inputs=7, classes=3, batch=2048)

    options = {"optimizer": g.optim.SGD(0.1)}
    free = g.plan(network(), device="cuda", **options)
    asked = {
        "budget": int(free.arena_bytes * {"mlp": 0.95, "resnet": 0.8}[model]),
        "feature_map_budget": free.feature_map_bytes * 7 // 10,
        "max_extra_flops": 0.1,
    }[goal]
    plan = g.plan(network(), device="cuda", **options, **{goal: asked})
    if goal == "budget":
        assert plan.arena_bytes <= asked
    elif goal == "feature_map_budget":
        assert plan.feature_map_bytes <= asked
    else:
        before = apart(monkeypatch, network(), **options, **{goal: asked})
        assert plan.arena_bytes <= before.arena_bytes


def state(name, shape=(1024,)):
    return State(
        TensorType(shape, float32), name=name, initial=Initial("constant", 0.0), role="parameter"
    )


def graph_of(*values, shown=0):
    nodes = [getattr(value, "node", value) for value in values]
    return Graph(tuple(nodes), {"y": nodes[shown].outputs[0]})


def step(w, gradient, rate):
    return apply(SgdUpdate, w, gradient, rate, attributes=SgdAttributes(0.0))


def order(graph, nodes):
    names = {node: name for name, node in nodes.items()}
    found = updates_together(Allocation(graph, target_of(H200)), goal=Goal()).graph
    verify(found)
    return "".join(names.get(node, ".") for node in found.nodes)


def large():
    """Nodes that give the arena a size, so that some gradients may wait."""
    x = g.input("x", (4 * 2**20,))
    return [first := g.relu(x), g.exp(first)]


def test_updates_wait_for_the_others():
    rate, a, b = g.input("rate", ()), state("a"), state("b")
    x = g.input("gradient", (1024,))
    da, db = g.relu(x), g.tanh(x)
    first, second = step(a, da, rate), step(b, db, rate)
    graph = graph_of(*large(), da, first, db, second)
    assert order(graph, {"a": first, "b": second}) == "....ab"


def test_an_update_runs_before_its_gradient_is_replaced():
    """The gradient of a, seen through a view, is another parameter, c."""
    rate, a, b, c = g.input("rate", ()), state("a"), state("b"), state("c")
    x = g.input("gradient", (1024,))
    seen = g.reshape(g.reshape(c, (2, 512)), (1024,))
    first, second = step(a, seen, rate), step(b, g.tanh(x), rate)
    other = apply(SgdUpdate, c, g.exp(x), rate, attributes=SgdAttributes(0.1))
    graph = graph_of(
        *large(), seen.node.inputs[0], seen, first, other.inputs[1], other, second.inputs[1], second
    )
    assert order(graph, {"a": first, "b": second, "c": other}) == ".....ac.b"


def test_readers_of_what_an_update_gives_run_after_it():
    rate, a, b = g.input("rate", ()), state("a"), state("b")
    x = g.input("gradient", (1024,))
    first, second = step(a, g.relu(x), rate), step(b, g.tanh(x), rate)
    after = g.exp(first.output)
    graph = graph_of(*large(), first.inputs[1], first, after, second.inputs[1], second)
    assert order(graph, {"a": first, "b": second, "y": after.node}) == "...ay.b"


def test_few_bytes_wait_in_a_small_arena():
    rate, a, b = g.input("rate", ()), state("a"), state("b")
    x = g.input("gradient", (1024,))
    first, second = step(a, g.relu(x), rate), step(b, g.tanh(x), rate)
    graph = graph_of(first.inputs[1], first, second.inputs[1], second)
    assert updates_together(Allocation(graph, target_of(H200))).graph is graph


def test_the_arena_decides():
    """A gradient that waits lives at the peak: by a thousandth more bytes, but not under a goal."""
    rate, a, b, c = g.input("rate", ()), state("a"), state("b"), state("c")
    first, second = step(a, g.relu(c), rate), step(b, g.tanh(c), rate)
    top = large()[0]
    graph = graph_of(first.inputs[1], first, second.inputs[1], top, g.exp(top), second, shown=4)
    size = Allocation(graph, target_of(H200)).arena_bytes("packed")
    assert order(graph, {"a": first, "b": second}) == ".a...b"
    found = updates_together(Allocation(graph, target_of(H200))).graph
    assert found.nodes[-2:] == (first, second)
    grown = Allocation(found, target_of(H200)).arena_bytes("packed")
    assert size < grown <= (1 + GROWTH) * size
