"""What the page lists at the peak has the names and kinds of a replay, as the printout has."""

import pytest
from view.networks import planned
from view.replay import replayed
from view.screen import VARIANTS, variants

from graphc.plans.names import buffer_name
from graphc.plans.printout import peak_rows

pytestmark = pytest.mark.browser

KINDS = ("state", "input", "feature-map", "gradient", "mirror", "workspace")

OTHERS = {name: {"network": name} for name in ("lstm", "gpt2", "unet")}


@pytest.mark.parametrize("name", [*VARIANTS, *OTHERS])
def test_the_page_names_buffers_at_the_peak_as_the_printout_does(show, name):
    plan = planned(**OTHERS[name]) if name in OTHERS else variants()[name]
    screen, held, step = show({name: plan}), replayed(plan), plan.peak_step
    rows = screen.page.evaluate(
        "[...document.querySelectorAll('#moment button')].map(row => "
        "[row.firstChild.textContent, row.querySelector('i').style.background])"
    )
    alive = plan.live_at(step)[: len(rows)]
    assert len(rows) == min(40, len(plan.live_at(step)))
    assert [text for text, _ in rows] == [buffer_name(plan, buffer, step) for buffer in alive]
    colours = {f"rgb{screen.colour(kind)}": kind.replace("-", " ") for kind in KINDS}
    kinds = [held[step, buffer.index][1] for buffer in alive]
    assert [colours[colour] for _, colour in rows] == kinds
    printed = [(kind, told) for _, kind, told in peak_rows(plan) if kind]
    page = list(zip(kinds, (text for text, _ in rows), strict=True))
    assert printed == page[: len(printed)]


def test_a_buffer_is_listed_by_what_it_holds_at_the_node_looked_at(show):
    """A gradient that overwrote a feature map is one only from there on."""
    plan = variants()["sharing"]
    screen, held = show({"sharing": plan}), replayed(plan)
    buffer = next(
        b for b in plan.buffers
        if {held[s, b.index][1] for s in range(b.lifetime.first, plan.lifetime_end(b))}
        >= {"feature map", "gradient"}
    )  # fmt: skip
    turn = next(
        s for s in range(len(plan.graph.nodes))
        if held.get((s, buffer.index), ("", ""))[1] == "gradient"
    )  # fmt: skip
    address = buffer.offset + buffer.bytes / 2
    for step in (turn - 1, turn):
        name, kind = held[step, buffer.index]
        told = screen.hover(step + 0.5, address).split("\n")
        assert told[0] == name
        assert told[2].startswith(f"{kind}, ")
    assert held[turn - 1, buffer.index] != held[turn, buffer.index]
