"""Keys of nodes, and the file of measured times."""

import copy
import json

import pytest

import graphc as g
from graphc.errors import OptionError
from graphc.planner.host_link import HostLink
from graphc.plans.costs import MeasuredCosts, Measurement, load_costs, node_key

COSTS = MeasuredCosts(
    {"name": "cpu", "machine": "a machine", "numpy": "2.1.0"},
    (
        Measurement("tanh(f32[2]) -> f32[2]", "tanh", 1.5e-06, 3, 20, 16),
        Measurement("exp(f32[2]) -> f32[2]", "exp", 0.0, 1, 0, 16),
    ),
    HostLink(2.4e10, 2.5e10, 8e-06, both_ways=False),
)


def x(*shape, dtype="float32"):
    return g.input("x", shape, dtype)


def test_a_key_is_op_types_and_attributes():
    y = g.sum(x(4, 3), 1, keepdims=True)
    assert node_key(y.node) == "sum(f32[4,3]) -> f32[4,1] {axes=(1,), keepdims=True}"
    loss = g.softmax_cross_entropy(x(4, 3), g.input("t", (4,), "int32"))
    assert node_key(loss.node) == "softmax_cross_entropy(f32[4,3], i32[4]) -> f32[], f32[4,3]"


def test_scopes_phases_and_random_streams_do_not_matter():
    with g.scope("a"), g.mirror(1), g.segment("s"):
        first = g.dropout(x(4, 3), 0.1)
    assert node_key(first.node) == node_key(g.dropout(x(4, 3), 0.1).node)
    loss = g.mean(g.tanh(g.linear(x(4, 3), 3)))
    plan = g.plan(loss, optimizer=g.optim.SGD(), recompute="recursive")
    again = [node for node in plan.graph.nodes if node.copy_of]
    assert all(node_key(node) == node_key(node.copy_of) for node in again)


def test_a_change_of_the_kernel_changes_the_key():
    built = [
        g.sum(x(4, 3), 1), g.sum(x(4, 3), 0), g.sum(x(4, 4), 1), g.mean(x(4, 3), 1),
        g.sum(x(4, 3, dtype="float64"), 1), g.sum(x(4, 3), 1, keepdims=True),
        g.dropout(x(4, 3), 0.1), g.dropout(x(4, 3), 0.2),
    ]  # fmt: skip
    assert len({node_key(value.node) for value in built}) == len(built)


def test_round_trip(tmp_path):
    path = tmp_path / "costs.json"
    COSTS.write(path)
    assert g.read_costs(path) == COSTS
    assert g.read_costs(str(path)) == load_costs(path) == load_costs(COSTS.as_json()) == COSTS
    assert load_costs(COSTS) is COSTS
    first = path.read_bytes()
    g.read_costs(path).write(path)
    assert path.read_bytes() == first


def test_fields_of_a_later_version_are_ignored():
    given = COSTS.as_json()
    given["note"] = given["measured"][0]["note"] = "new"
    assert load_costs(given) == COSTS


def changed(*path, to):
    given = copy.deepcopy(COSTS.as_json())
    inner = given
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = to
    return given


BROKEN = [
    ([], "expected an object"),
    (changed("measured", to={}), "measured: expected a list"),
    (changed("format", to=2), "format: expected 1, got 2; .*`graphc profile"),
    (changed("device", to="cpu"), "device: expected an object, got 'cpu'"),
    (changed("device", "name", to=1), "device.name: expected a string, got 1"),
    (changed("measured", 1, to=3), r"measured\[1\]: expected an object, got 3"),
    (changed("measured", 1, "key", to=None), r"measured\[1\].key: expected a string, got null"),
    (
        changed("measured", 0, "seconds", to=-1),
        r"\[0\].seconds: expected a number of at least 0, got -1",
    ),
    (
        changed("measured", 0, "seconds", to="1"),
        "seconds: expected a number of at least 0, got '1'",
    ),
    (changed("measured", 0, "seconds", to=float("nan")), "a number.*, got (NaN|nan|'NaN')"),
    (changed("measured", 0, "seconds", to=10**400), "seconds: expected a number of at least 0"),
    (
        changed("measured", 0, "count", to=1.5),
        "count: expected an integer of at least 0, got 1.5",
    ),
    (
        changed("measured", 0, "flops", to=True),
        "flops: expected an integer of at least 0, got true",
    ),
    (changed("measured", 1, "key", to="tanh(f32[2]) -> f32[2]"), r"\[1\]: each key must be unique"),
    (changed("host_link", to=3), "host_link: expected an object, got 3"),
    (changed("host_link", to={"to_host": 1e9}), "host_link: the key 'to_device' is missing"),
    (changed("host_link", "to_host", to=0), "to_host: expected bytes per second above 0, got 0"),
    (changed("host_link", "both_ways", to=1), "both_ways: expected true or false, got 1"),
]


@pytest.mark.parametrize(("given", "message"), BROKEN)
def test_files_that_are_not_well_formed(tmp_path, given, message):
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(given))
    with pytest.raises(OptionError, match=message) as error:
        load_costs(path)
    assert "costs.json" in str(error.value)
    if isinstance(given, dict):
        with pytest.raises(OptionError, match=message):
            g.plan(g.mean(x(2)), costs=given)


def test_unreadable_and_unwritable_files_are_errors(tmp_path):
    for name, content in (("text", b"{"), ("binary", b"\xff\xfe"), ("deep", b"[" * 100_000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(
            OptionError, match=rf"costs '.*{name}' is not valid JSON.*graphc profile"
        ):
            load_costs(tmp_path / name)
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(OptionError, match=r"cannot read the costs.*graphc profile"):
            load_costs(path)
    with pytest.raises(OptionError, match=r"cannot write .*No such file"):
        COSTS.write(tmp_path / "absent" / "costs.json")
    with pytest.raises(OptionError, match="a path or measured costs, got 3"):
        load_costs(3)
