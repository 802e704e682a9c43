"""The checker of schedules with copies: clocks by hand, and everything that it rejects."""

from dataclasses import replace

import pytest

from graphc.errors import OptionError, ProblemError
from graphc.planner.given import Event, HostLink, measure, solve
from graphc.planner.given.problem import parse_problem
from graphc.planner.given.replay import replay_steps

NODES = [
    {"id": 0, "cost": 2, "bytes": 10},
    {"id": 1, "cost": 3, "bytes": 20, "inputs": [0], "workspace": 5},
    {"id": 2, "cost": 1, "bytes": 4, "inputs": [1]},
    {"id": 3, "cost": 1, "bytes": 1, "inputs": [2, 0]},
]


def problem(link=HostLink(5.0, 10.0), nodes=NODES, **given):  # noqa: B008
    return replace(parse_problem({"nodes": nodes, **given}), link=link)


def events(text):
    """Events from a text: numbers are runs, `o`, `d` and `i` before a number are copies."""
    kinds = {"o": "out", "d": "drop", "i": "in"}
    return [
        Event(kinds[each[0]], int(each[1:])) if each[0] in kinds else Event("run", int(each))
        for each in text.split()
    ]


def test_clocks_by_hand():
    """The copy of 10 bytes takes 2 s to the host, within node 1, and 1 s back."""
    found = measure(problem(), events("0 o0 1 d0 2 i0 3"))
    assert found.seconds == 8  # the copy back takes 6 to 7, node 3 starts at 7
    assert found.stalls == 1
    assert (found.bytes_to_host, found.bytes_to_device, found.host_peak_bytes) == (10, 10, 10)
    assert found.peak_bytes == 35  # during node 1, beside its workspace
    assert measure(problem(), events("0 o0 1 d0 i0 2 3")).seconds == 7
    slow = HostLink(1.0, 10.0)
    assert measure(problem(slow), events("0 o0 1 d0 i0 2 3")).seconds == 14  # 12 + 1 + 1
    assert measure(problem(replace(slow, latency=1.0)), events("0 o0 1 d0 i0 2 3")).seconds == 16


def test_a_schedule_without_copies_is_that_of_the_replay():
    found, plain = measure(problem(), events("0 1 2 0 3")), replay_steps(problem(), [0, 1, 2, 0, 3])
    assert (found.seconds, found.peak_bytes) == (plain.cost, plain.peak_bytes)


def test_copies_in_one_direction_are_in_order():
    nodes = [
        {"id": 0, "cost": 1, "bytes": 10},
        {"id": 1, "cost": 1, "bytes": 10},
        {"id": 2, "cost": 1, "bytes": 10, "inputs": [0, 1]},
        {"id": 3, "cost": 1, "bytes": 10, "inputs": [0, 1, 2]},
    ]
    both = events("0 o0 1 o1 2 d0 d1 i0 i1 3")
    # Out 1 to 3 and 3 to 5, in 5 to 6 and 6 to 7.
    assert measure(problem(nodes=nodes), both).seconds == 8
    early = events("0 o0 1 o1 2 d0 i0 d1 i1 3")
    # In 3 to 4 beside the copy out; with one lane it waits for it, from 5 on.
    assert measure(problem(nodes=nodes), early).seconds == 7
    assert measure(problem(HostLink(5.0, 10.0, both_ways=False), nodes), early).seconds == 8


def test_host_bytes_are_reused_after_the_copy_back():
    nodes = [
        {"id": 0, "cost": 1, "bytes": 10},
        {"id": 1, "cost": 2, "bytes": 1, "inputs": [0]},
        {"id": 2, "cost": 1, "bytes": 1, "inputs": [0, 1]},
        {"id": 3, "cost": 1, "bytes": 10},
        {"id": 4, "cost": 1, "bytes": 1, "inputs": [2]},
        {"id": 5, "cost": 1, "bytes": 1, "inputs": [3, 4]},
    ]
    listed = events("0 o0 1 d0 3 i0 o3 2 4 d3 i3 5")
    free = measure(problem(nodes=nodes), listed)
    assert free.host_peak_bytes == 10
    assert free.seconds == 9
    # The second copy out starts at 5, when the first one is back, not at 4.
    assert measure(problem(HostLink(5.0, 10.0, host_bytes=10), nodes), listed).seconds == 9
    slow = HostLink(5.0, 2.0, host_bytes=10)
    # In 4 to 9, then out 9 to 11 instead of 4 to 6, then in 11 to 16.
    assert measure(problem(slow, nodes), listed).seconds == 17
    assert measure(problem(replace(slow, host_bytes=None), nodes), listed).seconds == 17


def test_a_value_may_be_fetched_twice_and_recomputed():
    nodes = [*NODES, {"id": 4, "cost": 1, "bytes": 1, "inputs": [3, 0]}]
    twice = measure(problem(nodes=nodes), events("0 o0 1 d0 2 i0 3 i0 4"))
    assert (twice.bytes_to_host, twice.bytes_to_device) == (10, 20)
    assert measure(problem(nodes=nodes), events("0 o0 1 d0 0 2 i0 3 4")).peak_bytes == 35


def test_outputs_may_leave_and_return_at_the_end():
    given = problem(outputs=[0, 3])
    found = measure(given, events("0 o0 1 2 3 d0 i0"))
    assert (found.seconds, found.stalls) == (8, 1)
    with pytest.raises(ProblemError, match="needs the output 0 after its drop"):
        measure(given, events("0 o0 1 2 3 d0"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("o0 0 1 2 3", "copies value 0 to the host before it is computed"),
        ("0 o0 1 d0 2 3", "computes node 3, which reads 0, after its drop"),
        ("0 o0 1 d0 o0 2 3", "which has it already"),
        ("0 1 d0 2 0 3", "drops value 0 before it is copied to the host"),
        ("0 1 2 i0 3", "fetches value 0, which was not copied"),
        ("0 o0 0 1 d0 2 i0 3", "makes value 0 again during its copy"),
        ("0 o0 1 i0 d0 2 3", "makes value 0 again during its copy"),
        ("0 o0 1 d0 d0 2 i0 3", "drops value 0 after its drop"),
        ("0 o0 1 d0 2 i0 i0 3", "fetches value 0 without a later use"),
        ("0 o0 1 d0 2 i0 0 3", "fetches value 0 without a later use"),
        ("0 o0 1 2 3", "which is never fetched"),
        ("1 0 2 3", "computes node 1, which reads 0, before it is computed"),
        ("0 1 2", "needs the output 3 before it is computed"),
        ("0 1 2 3 9", "the numbers are 0 to 3"),
        ("0 o7 1 2 3", "the numbers are 0 to 3"),
    ],
)
def test_illegal_schedules_are_rejected(text, message):
    with pytest.raises(ProblemError, match=message):
        measure(problem(), events(text))


def test_events_may_be_texts_with_ids():
    """One value of two outputs goes to the host."""
    nodes = [
        {"id": 7, "cost": 2, "bytes": [1, 10]},
        {"id": 0, "cost": 3, "bytes": 20, "inputs": [[7, 0]]},
        {"id": 1, "cost": 1, "bytes": 4, "inputs": [0, [7, 1]]},
    ]
    texts = ["run 7", "out 7[1]", "run 0", "drop 7[1]", "in 7[1]", "run 1"]
    found = measure(problem(nodes=nodes), texts, "34B")
    assert found == measure(problem(nodes=nodes), events("0 o1 1 d1 i1 2"))
    assert found.peak_bytes == 34
    planned = solve(problem(), 35)
    assert measure(problem(), planned.events).seconds == planned.cost


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "events must be a list of texts"),
        (["run 9"], "event 0 is 'run 9'; expected run, out, drop or in, and the id of a node"),
        (["run 0", "out 0[1]"], r"event 1 is 'out 0\[1\]'; expected"),
        (["wait 0"], "event 0 is 'wait 0'; expected"),
        ([["run 0"]], r"event 0 is \['run 0'\]; expected"),
        ([Event("run", 0.5)], "event 0 names 0.5, but the numbers are 0 to 3"),
    ],
)
def test_malformed_events_are_named(given, message):
    with pytest.raises(ProblemError, match=message):
        measure(problem(), given)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"to_host": 0}, "to_host must be above 0 bytes per second"),
        ({"to_device": float("nan")}, "to_device must be a finite number"),
        ({"to_host": "a"}, "to_host must be a finite number of at least 0, got 'a'"),
        ({"to_device": -1.0}, "to_device must be a finite number of at least 0"),
        ({"latency": -1}, "latency must be a finite number of at least 0, got -1"),
        ({"host_bytes": -1}, "host_bytes must be an integer of at least 0"),
        ({"both_ways": "yes"}, "both_ways must be True or False"),
    ],
)
def test_links_are_checked(fields, message):
    with pytest.raises(OptionError, match=message):
        HostLink(**{"to_host": 1.0, "to_device": 1.0, **fields})


def test_rules_of_nodes_are_kept():
    nodes = [dict(node) for node in NODES]
    nodes[0]["pinned"] = True
    nodes[2]["after"] = [0]
    with pytest.raises(ProblemError, match="recomputes node 0, which may run only once"):
        measure(problem(nodes=nodes), events("0 1 2 0 3"))
    with pytest.raises(ProblemError, match="of a pinned node, which stays"):
        measure(problem(nodes=nodes), events("0 o0 1 d0 2 i0 3"))
    nodes = [dict(node) for node in NODES]
    nodes[2]["after"] = [0]
    nodes[2]["inputs"] = []
    with pytest.raises(ProblemError, match="before node 0, which must run first"):
        measure(problem(nodes=nodes, outputs=[3]), events("1 0 2"))  # without node 1
    nodes[1]["pinned"] = True
    with pytest.raises(ProblemError, match="does not compute the pinned node 1"):
        measure(problem(nodes=nodes), events("0 2 3"))
    with pytest.raises(ProblemError, match="'wait'"):
        measure(problem(), [Event("wait", 0)])
    with pytest.raises(ProblemError, match="has no link"):
        measure(replace(problem(), link=None), events("0 1 2 3"))


def test_bytes_beyond_the_limits_are_rejected():
    listed = events("0 o0 1 d0 2 i0 3")
    assert measure(problem(), listed, 35).peak_bytes == 35
    with pytest.raises(ProblemError, match="needs 35 bytes, the budget is 34"):
        measure(problem(), listed, 34)
    with pytest.raises(ProblemError, match="needs 10 bytes on the host, which has 9"):
        measure(problem(HostLink(5.0, 10.0, host_bytes=9)), listed)


def test_bytes_of_a_copy_stay_until_the_drop():
    """Without a drop the value stays to the end, as the copy may still read it."""
    nodes = [*NODES, {"id": 4, "cost": 1, "bytes": 40, "inputs": [3]}]
    dropped = measure(problem(nodes=nodes), events("0 o0 1 d0 2 i0 3 4"))
    assert dropped.peak_bytes == 41
    with pytest.raises(ProblemError, match="never fetched"):
        measure(problem(nodes=nodes), events("0 o0 1 2 3 4"))


def test_copied_values_are_not_overwritten():
    nodes = [{"id": 0, "cost": 1, "bytes": 6}]
    nodes.append({"id": 1, "cost": 1, "bytes": 6, "inputs": [0], "overwrites": [[0, 0]]})
    nodes.append({"id": 2, "cost": 1, "bytes": 1, "inputs": [0, 1]})
    nodes.append({"id": 3, "cost": 1, "bytes": 6, "inputs": [0, 2], "overwrites": [[0, 0]]})
    given = problem(nodes=nodes)
    assert measure(given, events("0 1 2 3")).peak_bytes == 13
    # The instance from the host dies in node 3, and is overwritten.
    assert measure(given, events("0 o0 1 2 d0 i0 3")).peak_bytes == 13
    assert measure(given, events("0 1 0 2 3")).peak_bytes == 13


@pytest.mark.parametrize(
    ("link", "message"),
    [
        ({"to_host": 1}, "link: the key 'to_device' is missing"),
        ([], "link: expected an object"),
        ({"to_host": 0, "to_device": 1}, "link.to_host: expected a rate above 0"),
        ({"to_host": 1, "to_device": "fast"}, "link.to_device: expected a number"),
        ({"to_host": 1, "to_device": 1, "latency": -1}, "link.latency"),
        ({"to_host": 1, "to_device": 1, "host_bytes": 1.5}, "link.host_bytes"),
        ({"to_host": 1, "to_device": 1, "both_ways": 1}, "link.both_ways: expected true or false"),
        ({"to_host": 1, "to_device": 1, "rate": 1}, "link: unknown key"),
        ({"to_hosts": 1, "to_device": 1}, r"link: unknown key \(did you mean to_host\?\)"),
        ({"to_host": 1, "to_device": 1, "host_bytes": "7GiBs"}, "link.host_bytes must be a size"),
    ],
)
def test_errors_name_the_entry_of_the_link(link, message):
    with pytest.raises(ProblemError, match=message):
        parse_problem({"nodes": NODES, "link": link})
    full = {
        "to_host": 2e9, "to_device": 1e9, "latency": 1e-5, "host_bytes": "7B", "both_ways": False,
    }  # fmt: skip
    assert parse_problem({"nodes": NODES, "link": full}).link == HostLink(2e9, 1e9, 1e-5, 7, False)
