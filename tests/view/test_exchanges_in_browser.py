"""What ranks exchange is a row of its own under the map, beside the nodes that run meanwhile."""

import functools

import pytest
from view.networks import planned

from graphc.plans.timeline import timeline

pytestmark = pytest.mark.browser


@functools.cache
def plan():
    return planned("wide mlp", ranks=2)


@functools.cache
def expected(axis):
    """(first, last) of each exchange on an axis, by the model's timeline."""
    found = timeline(plan())
    edges = [sum(found.seconds[:step]) for step in range(len(found.seconds) + 1)]

    def on_nodes(time):
        step = max(at for at, edge in enumerate(edges) if edge <= time * (1 + 1e-9))
        if step == len(found.seconds):
            return step
        return step + (time - edges[step]) / (edges[step + 1] - edges[step])

    if axis == "seconds":
        return [(begin, begin + length) for _, begin, length in found.exchanges]
    return [
        (step if begin <= edges[step] * (1 + 1e-9) else on_nodes(begin), on_nodes(begin + length))
        for step, begin, length in found.exchanges
    ]


def spans(screen):
    """Where the row is filled, in times of the view's axis."""
    t0, t1, _, _ = screen.view()
    width, height = screen.size("exchanges")
    (row,) = screen.pixels("exchanges", 0, height - 2, width, 1)  # below the texts
    filled = [x for x, pixel in enumerate(row) if pixel[3] > 100]
    starts = [x for x in filled if x - 1 not in set(filled)]
    ends = [x + 1 for x in filled if x + 1 not in set(filled)]
    return [
        (t0 + a / width * (t1 - t0), t0 + b / width * (t1 - t0))
        for a, b in zip(starts, ends, strict=True)
    ]


@pytest.mark.parametrize("axis", ["node", "seconds"])
def test_a_row_shows_when_what_is_exchanged(show, axis):
    screen = show({"two ranks": plan()})
    if axis == "seconds":
        screen.press("t")
    t0, t1, _, _ = screen.view()
    pixel = 2.5 * (t1 - t0) / screen.size("exchanges")[0]
    wanted = [entry for entry in expected(axis) if entry[1] - entry[0] > 2 * pixel]
    found = [entry for entry in spans(screen) if entry[1] - entry[0] > pixel]
    assert wanted
    assert len(found) == len(wanted)
    for (first, last), (begin, end) in zip(found, wanted, strict=True):
        assert first == pytest.approx(begin, abs=pixel)
        assert last == pytest.approx(end, abs=pixel)


def test_an_exchange_tells_what_it_sends_and_leads_to_its_value(show):
    screen = show({"two ranks": plan()})
    steps = [step for step, _, _ in timeline(plan()).exchanges]
    pairs = zip(expected("node"), steps, strict=True)
    (first, last), step = max(pairs, key=lambda pair: pair[0][1] - pair[0][0])
    node = plan().graph.nodes[step]
    t0, t1, _, _ = screen.view()
    box = screen.page.locator("#exchanged").bounding_box()
    place = (
        box["x"] + ((first + last) / 2 - t0) / (t1 - t0) * box["width"],
        box["y"] + box["height"] / 2,
    )
    screen.page.mouse.move(*place)
    lines = screen.tooltip().splitlines()
    assert lines[0] == f"node {step}: {node.label}"
    sent = node.op.sent_bytes(node)
    figure, unit = lines[1].removeprefix("sends ").split()[:2]
    assert float(figure) * 1024 ** ("B", "KiB", "MiB").index(unit) == pytest.approx(sent, rel=0.01)
    screen.page.mouse.click(*place)
    assert screen.heading().split()[0] == plan().graph.names[node.output]


def test_a_plan_of_one_process_has_no_row(show):
    screen = show({"one": planned("wide mlp"), "two": plan()})
    row = screen.page.locator("#exchanged")
    assert not row.is_visible()
    screen.press("2")
    assert row.is_visible()
    screen.press("1")
    assert not row.is_visible()
