"""The checker of plans rejects copies to host memory that are wrong."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch import fx, nn  # noqa: E402

import graphc  # noqa: E402
from graphc.errors import TorchError  # noqa: E402
from graphc.planner.host_link import HostLink  # noqa: E402
from graphc.torch.budget import goal as planning  # noqa: E402
from graphc.torch.budget.check.replay import check, replay  # noqa: E402
from graphc.torch.budget.goal import to_replay  # noqa: E402
from graphc.torch.budget.host.host_memory import (  # noqa: E402
    begin_in,
    begin_out,
    end_in,
    end_out,
    open_host,
)

aten = torch.ops.aten


@pytest.fixture(scope="module")
def planned():
    """A plan of a chain of equal layers with several copies."""
    module = nn.Sequential(*[nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(6)])
    args = (torch.randn(512, 32),)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "host_link", lambda _: HostLink(1e13, 1e13))
        report = graphc.torch.plan(module, args, max_extra_time=0.0).report
        budget = (3 * report.least_bytes + report.plain_bytes) // 4
        return graphc.torch.plan(module, args, budget, host_budget="1GiB").plans[-1]


@pytest.fixture
def plan(planned):
    """The input of the checker, with graphs that may be changed."""
    graphs = copied(planned.forward.graph), copied(planned.backward.graph)
    found = to_replay(planned.torch_steps, *graphs)
    assert len(of(found.forward, begin_out)) >= 2
    return found


def copied(graph):
    made = fx.Graph()
    (output,) = graph.find_nodes(op="output")
    made.output(made.graph_copy(graph, {})).meta = dict(output.meta)
    return made


def of(graph, target):
    return [node for node in graph.nodes if node.target is target]


def copy_of(plan, number=0):
    """The nodes of one copy: its begin and end in each direction."""
    begin = of(plan.forward, begin_out)[number]
    key = begin.args[2]
    nodes = [*plan.forward.nodes, *plan.backward.nodes]
    (end,) = (node for node in nodes if node.target is end_out and node.args[2] == key)
    (fetch,) = (node for node in nodes if node.target is begin_in and node.args[1] == key)
    (arrival,) = (node for node in nodes if node.target is end_in and node.args[2] == key)
    return begin, end, fetch, arrival


def refused(plan, match):
    with pytest.raises(TorchError, match=match):
        replay(plan)


def test_the_peak_is_the_claimed_one(planned, plan):
    assert check(plan, planned.solved.peak_bytes).peak.bytes == planned.solved.peak_bytes
    with pytest.raises(TorchError, match="the plan claims at most"):
        check(plan, planned.solved.peak_bytes - 1)


def test_a_source_that_is_freed_before_its_copy_has_ended(plan):
    _, end, *_ = copy_of(plan)
    end.graph.erase_node(end)
    refused(plan, "is freed before its copy to the host has ended")


def test_a_source_that_is_written_before_its_copy_has_ended(plan):
    begin, *_ = copy_of(plan)
    source = begin.args[1]
    with plan.forward.inserting_after(begin):
        write = plan.forward.call_function(aten.tanh_.default, (source,))
    write.meta = dict(source.meta)
    refused(plan, "is overwritten before its copy has ended")


def test_a_tensor_that_is_read_before_its_arrival(plan):
    *_, fetch, arrival = copy_of(plan)
    arrival.replace_all_uses_with(fetch)
    arrival.graph.erase_node(arrival)
    refused(plan, f"{fetch.name} is read before its copy from the host has ended")


def test_a_fetch_before_the_copy_to_the_host_has_ended(plan):
    begin, _, fetch, _ = copy_of(plan)
    with plan.forward.inserting_after(begin):
        early = plan.forward.call_function(begin_in, (begin.args[0], *fetch.args[1:]))
    early.meta = dict(fetch.meta)
    refused(plan, "the copy of .* to the host has not ended")


def test_a_fetch_that_crosses_the_boundary(plan):
    _, end, fetch, _ = copy_of(plan)
    (output,) = plan.forward.find_nodes(op="output")
    with plan.forward.inserting_before(output):
        early = plan.forward.call_function(begin_in, (end.args[0], *fetch.args[1:]))
    early.meta = dict(fetch.meta)
    refused(plan, f"{early.name} is returned before its copy from the host has ended")


def test_host_bytes_that_are_overwritten(plan):
    first, *_ = copy_of(plan, 0)
    second, *_ = copy_of(plan, 1)
    second.update_arg(3, first.args[3] + 64)
    refused(plan, f"copy {first.args[2]} is not on the host, or its bytes are overwritten")
    first.append(second)
    second.update_arg(1, first.args[1])
    refused(plan, f"{first.args[1].name} is copied to the host already")


def test_host_bytes_of_two_copies_at_a_time(plan):
    first, end, *_ = copy_of(plan, 0)
    second, *_ = copy_of(plan, 1)
    second.update_arg(3, first.args[3] + 64)
    second.append(end)
    refused(plan, "is copied to the same host bytes at the same time")


def test_a_fetch_of_another_tensor(plan):
    *_, fetch, arrival = copy_of(plan, 0)
    other, *_ = copy_of(plan, 1)
    fetch.update_arg(1, other.args[2])
    arrival.update_arg(2, other.args[2])
    refused(plan, "the computed value is not a value of the module")


def test_a_fetch_of_bytes_without_content(plan):
    *_, fetch, _ = copy_of(plan)
    fetch.update_arg(1, 1000)
    refused(plan, "copy 1000 is not on the host")


def test_copies_outside_of_host_memory(plan):
    (opened,) = of(plan.forward, open_host)
    opened.update_arg(0, 64)
    refused(plan, "the copy is outside of host memory")
    opened.update_arg(0, 2**40)
    begin, *_ = copy_of(plan)
    begin.update_arg(4, 64)
    refused(plan, f"{begin.args[1].name} has more bytes than the host keeps for it")


def test_a_copy_of_a_part_of_a_storage(plan):
    begin, *_ = copy_of(plan)
    source = begin.args[1]
    source.meta["val"] = source.meta["val"][:5]
    refused(plan, f"{source.name} is only a part of its storage")


def test_an_end_without_a_begin(plan):
    begin, *_ = copy_of(plan)
    begin.graph.erase_node(begin)
    refused(plan, "is not being copied to the host as copy")


def test_host_memory_that_is_another_value(plan):
    begin, *_ = copy_of(plan)
    begin.update_arg(0, begin.args[1])
    refused(plan, f"{begin.args[0].name} is not host memory")
