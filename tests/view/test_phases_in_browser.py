"""The row of phases, the axes that a page opens on, and the label of recomputed values."""

import pytest
from view.screen import NAMES, Screen, strategy_plans

from graphc.view.page import page

pytestmark = pytest.mark.browser


@pytest.fixture
def opened_page(browser, tmp_path):
    """A page as `graphc view --strategies` writes it."""
    path = tmp_path / "opened.html"
    path.write_text(page(strategy_plans(), "opened", opened="sublinear"))
    screen = Screen(browser, path)
    yield screen
    screen.page.close()
    assert screen.complaints == []


def own_axes(name):
    plan = strategy_plans()[name]
    return [0, len(plan.graph.nodes), 0, plan.arena_bytes]


def all_axes():
    plans = strategy_plans().values()
    most = max(len(each.graph.nodes) for each in plans), max(each.arena_bytes for each in plans)
    return [0, most[0], 0, most[1]]


def test_a_page_of_strategies_opens_on_the_axes_of_its_plan(opened_page, browser):
    assert opened_page.view() == own_axes("sublinear")
    for number, name in enumerate(NAMES, 1):
        assert opened_page.press(str(number)) == own_axes(name)
    assert opened_page.press("+") != own_axes(NAMES[-1])
    assert opened_page.press("0") == own_axes(NAMES[-1])
    assert opened_page.press("0") == all_axes()
    opened_page.page.wait_for_timeout(350)
    assert "axes=all" in opened_page.page.url
    again = browser.new_page()
    again.goto(opened_page.page.url)
    again.wait_for_selector("#map[data-draws]")
    assert float(again.locator("#map").get_attribute("data-a1")) == all_axes()[3]
    again.close()


@pytest.mark.parametrize("name", NAMES)
def test_the_row_of_phases_shows_both_passes_and_recomputed_nodes(opened_page, name):
    plan = strategy_plans()[name]
    opened_page.press(str(NAMES.index(name) + 1))
    wide, tall = opened_page.size("phases")
    labels = [text for text, _, _ in opened_page.texts("phases")]
    assert labels == ["forward", "backward"]
    colours = {
        "forward": opened_page.colour("feature-map"),
        "gradient": opened_page.colour("gradient"),
        "mirror": opened_page.colour("gradient"),
    }
    count = len(plan.graph.nodes)
    strip = round(0.75 * tall)  # below the labels, and above the line of recomputed nodes
    rows = (opened_page.pixels("phases", 0, y, wide, 1) for y in (strip - 1, tall - 1))
    (passes,), (below,) = rows
    recomputed = opened_page.colour("mirror")
    seen = set()
    for step, node in enumerate(plan.graph.nodes):
        x = int((step + 0.5) / count * wide)
        if node.phase in colours:
            assert passes[x][:3] == colours[node.phase], node.label
            assert (below[x][:3] == recomputed and below[x][3] == 255) == (node.phase == "mirror")
            seen.add(node.phase)
    assert {"forward", "gradient"} <= seen


def test_kinds_are_labelled_recomputed(opened_page):
    kinds = opened_page.page.locator("#kinds label").all_inner_texts()
    assert any(text.startswith("recomputed") for text in kinds)
    assert not any("mirror" in text for text in kinds)
