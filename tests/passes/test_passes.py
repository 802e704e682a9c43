"""Rewriting passes, the pipeline and storages on graphs small enough to see through."""

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

import graphc as g
from graphc import Graph
from graphc.compiler.compilation import plain
from graphc.compiler.options import PlanOptions
from graphc.compiler.pipeline import STEPS, make_plan
from graphc.errors import GraphcError, GraphError
from graphc.ir.builder import trace
from graphc.ir.rewrite import rewrite
from graphc.memory.allocate import Allocation
from graphc.memory.sharing import share
from graphc.passes.common_subexpressions import share_common_subexpressions
from graphc.passes.dead_code import remove_dead_code
from graphc.passes.simplify import simplify


def names(graph):
    return [node.op.name for node in graph.nodes]


def simplified(build):
    x = g.input("x", (2, 3, 4))
    graph = trace({"y": build(x)})
    return names(remove_dead_code(simplify(graph)))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda x: g.tanh(x * 1.0), ["tanh"]),
        (lambda x: g.neg(g.neg(g.tanh(x))), ["tanh"]),
        (lambda x: g.reshape(g.reshape(g.tanh(x), (24,)), (2, 3, 4)), ["tanh"]),
        (lambda x: g.reshape(g.reshape(g.tanh(x), (24,)), (3, 8)), ["tanh", "reshape", "reshape"]),
        (lambda x: g.transpose(g.transpose(g.tanh(x), (1, 2, 0)), (2, 0, 1)), ["tanh"]),
        (lambda x: g.transpose(g.transpose(x, (1, 2, 0)), (1, 2, 0)), ["transpose", "transpose"]),
        (lambda x: x + 0.0, ["shift"]),  # -0.0 + 0.0 is 0.0: not an identity
    ],
)
def test_simplify(build, left):
    assert simplified(build) == left


def test_common_subexpressions_merge_across_equal_operands():
    x = g.input("x", (3,))
    with g.mirror(1):
        mirrored = g.tanh(x)
    graph = trace({"y": g.exp(g.tanh(x)) + g.exp(g.tanh(x)) * mirrored})
    found = names(share_common_subexpressions(graph))
    assert found.count("exp") == 1
    assert found.count("tanh") == 2  # the one that may be computed again stays apart


def test_dead_code_keeps_updates():
    x = g.input("x", (2, 3))
    plan = g.plan(g.mean(g.linear(x, 2)), optimizer=g.optim.SGD())
    assert names(remove_dead_code(plan.graph)) == names(plan.graph)


def test_dumps_and_verification_between_passes(tmp_path):
    x = g.input("x", (2, 3))
    loss = g.mean(g.tanh(g.linear(x, 2)))
    g.plan(loss, optimizer=g.optim.SGD(), dump=tmp_path / "dump")
    files = sorted(path.name for path in (tmp_path / "dump").iterdir())
    assert files == [
        "00-forward.txt",
        "01-number-streams.txt",
        "02-simplify.txt",
        "03-common-subexpressions.txt",
        "04-dead-code.txt",
        "05-training-step.txt",
        "06-common-subexpressions.txt",
        "07-widen-products.txt",
        "08-time-steps.txt",
        "09-running-sums.txt",
        "10-place-updates.txt",
        "11-fuse.txt",
        "12-inline-constants.txt",
        "13-recompute.txt",
        "14-order.txt",
        "15-plan.txt",
        "times.txt",
    ]
    times = (tmp_path / "dump" / "times.txt").read_text().splitlines()
    assert [line.split()[-1] for line in times] == [file[3:-4] for file in files[:-1]]
    assert g.parse_graph((tmp_path / "dump" / "10-place-updates.txt").read_text())
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", "nul\0"):
        with pytest.raises(GraphcError, match="cannot dump"):
            g.plan(loss, dump=folder)

    reverse = plain("reverse", lambda graph: Graph(graph.nodes[::-1], graph.outputs))
    with pytest.raises(GraphError, match="after the pass 'reverse'"):
        make_plan(PlanOptions(loss), (*STEPS, reverse))


def without(graph, names):
    return Graph([node for node in graph.nodes if node.op.name not in names], graph.outputs)


def test_a_pass_that_removes_an_update_is_an_error():
    """The network would never train, or in inference use its first statistics."""
    x = g.input("x", (4, 3))
    loss = g.mean(g.batch_norm(g.linear(x, 2)))
    options = PlanOptions(loss, optimizer=g.optim.SGD())
    graph = make_plan(options).graph
    updates = {node.op.name for node in graph.nodes if node.replaced}
    assert len(updates) >= 2
    for op in sorted(updates):
        remove = plain("remove", lambda graph, op=op: without(graph, {op}))
        with pytest.raises(GraphError, match="the pass 'remove' removed the updates of"):
            make_plan(options, (*STEPS, remove))


def test_a_pass_must_return_a_graph():
    loss = g.mean(g.tanh(g.input("x", (2, 3))))
    with pytest.raises(GraphError, match="the pass 'none' must return a graph, got None"):
        make_plan(PlanOptions(loss), (*STEPS, plain("none", lambda graph: None)))


def test_errors_in_a_pass_name_it():
    loss = g.mean(g.tanh(g.input("x", (2, 3))))

    def nothing(node):
        """A rule without a return."""

    for run, error, message in (
        (lambda graph: rewrite(graph, nothing), GraphError, "nothing must return a node .*None"),
        (lambda graph: 1 / 0, ZeroDivisionError, "division by zero"),
    ):
        with pytest.raises(error, match=message) as caught:
            make_plan(PlanOptions(loss), (*STEPS, plain("mine", run)))
        assert caught.value.__notes__ == ["in the pass 'mine'"]


def test_a_dump_that_cannot_be_written_leaves_the_file_that_was_there_and_nothing_else(
    tmp_path, monkeypatch
):
    """Its files go through links and keep their mode, as all that graphc writes."""
    loss = g.mean(g.tanh(g.input("x", (2, 3))))
    g.plan(loss, dump=tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    (tmp_path / "00-forward.txt").chmod(0o600)

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(GraphcError, match=r"00-forward.txt.*No space left.*nothing was written"):
        g.plan(g.mean(g.input("y", (9,))), dump=tmp_path)
    monkeypatch.undo()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    g.plan(loss, dump=tmp_path)
    assert (tmp_path / "00-forward.txt").stat().st_mode & 0o777 == 0o600


def test_storage_is_not_overwritten_while_a_view_of_it_is_to_be_read():
    x = g.input("x", (4, 4))
    y = g.tanh(x)
    view = y[0:2]
    z = g.sigmoid(y)
    graph = trace({"out": g.mean(view) + g.mean(z)})
    placements = Allocation(graph).merged.placements
    assert placements[view].how == "view"
    assert placements[z].how == "new"


def test_strided_operands_are_not_overwritten():
    x = g.input("x", (4, 4))
    turned = g.transpose(g.tanh(x))
    loss = g.softmax_cross_entropy(turned, g.input("t", (4,), "int32"))
    graph = trace({"loss": loss})
    probabilities = loss.producer.outputs[1]
    placements = Allocation(graph).merged.placements
    assert placements[probabilities].how == "new"


def test_inputs_and_states_are_not_overwritten():
    x = g.input("x", (4,))
    y, z = g.relu(x), g.relu(g.parameter("w", (4,)))
    graph = trace({"y": y, "z": z})
    placements = Allocation(graph).merged.placements
    assert placements[y].how == placements[z].how == "new"


# --- sharing ---

LIFETIMES = st.lists(
    st.tuples(st.integers(0, 20), st.integers(1, 10), st.integers(1, 40)).map(
        lambda t: (t[0], t[0] + t[1], t[2])
    ),
    min_size=1,
    max_size=30,
).map(sorted)


def overlapping(tenants):
    for i, (first, last, _) in enumerate(tenants):
        for j in range(i):
            if tenants[j][0] < last and first < tenants[j][1]:
                yield i, j


@given(LIFETIMES)
def test_no_block_has_two_tenants_at_a_time(tenants):
    tags = share(tenants)
    assert all(tags[i] != tags[j] for i, j in overlapping(tenants))
    assert set(tags) == set(range(len(set(tags))))


def test_sharing_matches_sizes_and_grows():
    assert share([(0, 1, 100), (0, 1, 10), (1, 2, 9), (1, 2, 90)]) == [0, 1, 1, 0]
    assert share([(0, 1, 10), (1, 2, 50)]) == [0, 0]  # grows
    assert share([(0, 1, 1000), (1, 2, 10)]) == [0, 1]  # far too large to match
