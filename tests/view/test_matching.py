"""Values of two plans that are the same, and values by what people call them."""

import numpy as np
import pytest
from ops.test_strides import run
from view.networks import pairs_of, planned

import graphc as g
from graphc.errors import OptionError
from graphc.models import mlp
from graphc.view.matching import find_value, identities, pairs


def test_values_are_found_by_name_and_by_place():
    plan = planned()
    names = plan.graph.names
    for value, name in names.items():
        assert find_value(plan, name) is value
        assert find_value(plan, name[1:]) is value
    found = find_value(plan, "stem/relu")
    assert found.node.label == "stem/relu"
    with pytest.raises(OptionError, match=r"matches \d+ values; choose one of: .* and \d+ more"):
        find_value(plan, "stage1")
    with pytest.raises(OptionError, match="no value '#'; no name is similar"):
        find_value(plan, "#")
    with pytest.raises(OptionError, match="no value 'stem/rulu'; similar names are stem/relu"):
        find_value(plan, "stem/rulu")
    with pytest.raises(OptionError, match="got nothing"):
        find_value(plan, "")
    assert find_value(plan, next(iter(plan.graph.outputs))) in plan.graph.outputs.values()


def test_pairs_hold_every_value_once():
    before, after = (planned(fuse=False, recompute=p).graph for p in ("none", "sublinear"))
    found = list(pairs(before, after))
    assert {a for a, _ in found} - {None} == set(before.values)
    assert {b for _, b in found} - {None} == set(after.values)
    assert len([a for a, _ in found if a is not None]) == len(before.values)
    for a, b in found:
        if a is not None and b is not None and a.node is not None:
            assert (a.node.label, a.node.phase, a.type) == (b.node.label, b.node.phase, b.type)
        assert a is not None or b.node.phase == "mirror"
        assert b is not None


def originals(values):
    """Values, or what they are copies of."""
    return [v.node.copy_of.outputs[v.index] if v.node and v.node.copy_of else v for v in values]


@pytest.mark.parametrize(
    ("network", "policy"),
    pairs_of(["lstm", "resnet", "gpt2", "densenet"], ["cheap", "sublinear", "recursive"]),
)
def test_matched_values_have_matched_operands(network, policy):
    """Nodes run in another order where other values are kept, and many are alike."""
    before, after = (planned(network, fuse=False, recompute=p).graph for p in ("none", policy))
    found = {a: b for a, b in pairs(before, after) if a is not None}
    for a, b in found.items():
        if a.node is not None and b.node is not None:
            assert [found[x] for x in a.node.inputs] == originals(b.node.inputs)
            assert repr(a.node.attributes) == repr(b.node.attributes)


def test_identities_are_the_same_for_what_is_the_same():
    policies = ("none", "cheap", "recursive")
    graphs = [planned("lstm", fuse=False, recompute=p).graph for p in policies]
    numbers = identities(graphs)
    for graph, found in zip(graphs, numbers, strict=True):
        assert list(found) == list(graph.values)
        assert len(set(found.values())) == len(found)
    for found in numbers[1:]:
        assert set(numbers[0].values()) <= set(found.values())
    assert identities(graphs[:1] * 2)[0] == identities(graphs[:1] * 2)[1]


def test_plans_of_two_batches_are_matched_by_place():
    """No operand is of the same type; scopes and ops are the same."""
    small, large = (
        g.plan(mlp(layers=3, hidden=8, inputs=4, batch=b), optimizer=g.optim.SGD()).graph
        for b in (4, 8)
    )
    found = [(a, b) for a, b in pairs(small, large) if a is not None and b is not None]
    weights = [(a, b) for a, b in found if a.node is not None and a.node.op.has_effect]
    assert len(weights) == len(small.states)
    assert all(a.node.label == b.node.label for a, b in weights)


def contents(graph):
    """What each value holds that is computed from some numbers, by the kernels of NumPy."""
    arrays = {}
    for value in (*graph.inputs, *graph.states):
        shape, dtype = value.shape, value.type.dtype.numpy
        rng = np.random.default_rng(list(graph.names[value].encode()))
        if value.type.dtype.kind == "float":
            arrays[value] = rng.uniform(0.1, 1, shape).astype(dtype)
        else:
            arrays[value] = rng.integers(0, 2, shape).astype(dtype)
    for node in graph.nodes:
        if node.op.views:
            viewed = arrays[node.named_inputs()[node.op.views]]
            found = node.op.numpy_views(node, viewed)
        else:
            arrays |= {v: np.empty(v.shape, v.type.dtype.numpy) for v in node.outputs}
            found = run(node, arrays)
        arrays |= dict(zip(node.outputs, found, strict=True))
    return arrays


GROUPED = {
    "lstm": {},
    "resnet": {},
    "unet": {},
    "lstm, recursive": {"recompute": "recursive"},
    "lstm, cuda": {"device": "cuda", "roofline": "h100"},
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] if name == "resnet" else []) for name in GROUPED],
)
def test_outputs_of_a_group_match_those_of_its_ops(name):
    """By the numbers: the kernels of groups give the bits of their ops."""
    network = name.split(",")[0]
    graphs = (planned(network, **GROUPED[name]).graph, planned(network, fuse=False).graph)
    grouped = [n for n in graphs[0].nodes if "fused" in n.op.name]
    assert len(grouped) >= 4
    fused, apart = identities(graphs)
    same = {number: value for value, number in apart.items()}
    first, second = (contents(graph) for graph in graphs)
    for value, number in fused.items():
        if number in same:
            np.testing.assert_array_equal(first[value], second[same[number]], strict=True)
        else:
            assert value.node.phase == "mirror"
