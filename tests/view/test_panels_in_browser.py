"""The panels in a browser: search, tabs, what is live at a node, what is related to a value."""

import re

import pytest
from view.screen import NAMES, called, large, strategy_plans, written_last

pytestmark = pytest.mark.browser


def test_a_click_shows_all_of_a_value(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    buffer, step = max(large(plan, screen), key=lambda entry: entry[0].lifetime.first)
    screen.page.mouse.click(*screen.place(step + 0.5, buffer.offset + buffer.bytes / 2))
    text = screen.page.locator("#details").inner_text()
    name = written_last(plan, buffer, step)
    value = next(v for v, each in plan.graph.names.items() if each == name)
    assert text.startswith(name)
    assert value.node.label in text
    assert " × ".join(map(str, value.shape)) in text
    assert f"{buffer.offset:#x} to {buffer.offset + buffer.bytes:#x}" in text
    assert value.type.bytes >= 1024
    assert f" ({value.type.bytes:,})\n" in text
    readers = plan.graph.uses[value]
    assert f"consumers: {len(readers)}" in text.lower()
    for reader in readers:
        assert f"node {reader}, {plan.graph.nodes[reader].label}" in text


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_a_layer_and_moves_to_it(screen, name):
    plan = strategy_plans()[name]
    screen.press(str(NAMES.index(name) + 1))
    screen.page.keyboard.press("/")
    screen.page.keyboard.type("STAGE3/unit0/reduce")
    graph = plan.graph
    wanted = [v for v in graph.values if v.node and "stage3/unit0/reduce" in v.node.label]
    states = [v for v in graph.states if "stage3/unit0/reduce" in v.name]
    assert screen.page.locator("#found").inner_text() == f"1 of {len(wanted) + len(states)}"
    t0, t1, a0, a1 = screen.view()
    buffer = plan.buffers[plan.placements[wanted[0]].buffer]
    assert t0 <= buffer.lifetime.first < t1
    assert a0 <= buffer.offset < a1
    assert a1 - a0 < plan.arena_bytes
    heading = screen.page.locator("#details h3")
    assert heading.inner_text() == called(plan, wanted[0])
    screen.page.keyboard.press("Enter")
    assert heading.inner_text().split()[0] == graph.names[wanted[1]]
    screen.page.keyboard.press("Escape")
    screen.press("p")
    assert screen.page.locator("#found").inner_text() == ""
    assert screen.page.locator("#search").input_value() == ""


def test_a_search_counts_from_what_is_selected_on_another_tab(screen):
    screen.page.fill("#search", "relu")
    screen.page.keyboard.press("Enter")
    screen.page.keyboard.press("Enter")
    heading = screen.page.locator("#details h3")
    before = heading.inner_text().split()[1].strip("()")
    screen.page.locator("[role=tab]").nth(3).click()
    assert heading.inner_text().split()[1] == f"({before})"
    told = screen.page.locator("#found").inner_text()
    number, count = map(int, re.findall(r"\d+", told))
    plan = strategy_plans()[NAMES[3]]
    names = plan.graph.names
    relus = [v for v in plan.graph.values if "relu" in names[v] + (v.node.label if v.node else "")]
    assert count == len(relus)
    computed = [v for v in relus if v.node] + [v for v in relus if not v.node]
    assert computed[number - 1].node.label == before
    screen.press("n")
    assert heading.inner_text().split()[0] == plan.graph.names[computed[number]]


def test_fitting_holds_until_the_view_changes(screen):
    plans = [strategy_plans()[name] for name in NAMES]
    whole = [[0, len(plan.graph.nodes), 0, plan.arena_bytes] for plan in plans]
    assert screen.press("3", "f") == whole[2]
    assert screen.press("4") == whole[3]
    near = screen.press("+", "+")
    assert screen.press("5") == near


def test_changes_of_the_view_keep_plans_side_by_side(screen):
    for key in ("+", "-", "0", "f", "ArrowLeft", "Escape"):
        screen.press("a")
        assert not screen.page.locator("#map").is_visible()
        screen.press(key)
        assert screen.page.locator("#map").is_visible()
    screen.press("a")
    screen.page.locator("#fit").click()
    assert screen.page.locator("#map").is_visible()


def test_search_finds_an_output(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    ((name, value),) = plan.graph.outputs.items()
    assert name not in value.node.label
    screen.page.fill("#search", name)
    assert screen.page.locator("#found").inner_text() == "1 of 1"
    assert screen.page.locator("#details h3").inner_text().split()[0] == plan.graph.names[value]


def test_search_for_what_is_not_there(screen):
    before = screen.view()
    screen.page.fill("#search", "no such layer")
    assert screen.page.locator("#found").inner_text() == "no match"
    assert screen.view() == before


def test_tabs_have_common_axes_and_their_own_figures(screen):
    steps = max(len(each.graph.nodes) for each in strategy_plans().values())
    height = max(each.arena_bytes for each in strategy_plans().values())
    tabs = screen.page.locator("[role=tab]")
    assert tabs.all_inner_texts() == list(NAMES)
    for number, (name, plan) in enumerate(strategy_plans().items()):
        tabs.nth(number).click()
        assert screen.view() == [0, steps, 0, height]
        selected = screen.page.locator("[role=tab][aria-selected=true]")
        assert selected.all_inner_texts() == [name]
        assert f"{plan.arena_bytes:,} bytes" in screen.page.locator("#summary").inner_text()
        check_moment(screen, plan, plan.peak_step)
        title = screen.page.locator("#moment-title").inner_text().lower()
        assert title.startswith("peak")


def check_moment(screen, plan, step):
    """The panel lists the largest buffers that are live at a step, and what they are."""
    title = screen.page.locator("#moment-title").inner_text().lower()
    assert title.endswith(f"at node {step}")
    alive = sorted(plan.live_at(step), key=lambda buffer: -buffer.bytes)[:40]
    rows = screen.page.locator("#moment button").all_inner_texts()
    assert len(rows) == len(alive)
    for row, buffer in zip(rows, alive, strict=True):
        name, size = row.split("\n")[0].split()[0], row.split("\n")[-1]
        residents = {plan.graph.names[v] for v, p in plan.placements.items()
                     if plan.buffers[p.buffer].bytes == buffer.bytes}  # fmt: skip
        assert name in residents | {"workspace"}
        assert name.startswith("@") == (buffer.kind == "state")
        figure, unit = size.split()
        scale = 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)
        assert float(figure) * scale == pytest.approx(buffer.bytes, rel=0.01)


def test_live_values_of_another_node_are_listed(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    curve = screen.page.locator("#curve").bounding_box()
    t0, t1, _, _ = screen.view()
    step = len(plan.graph.nodes) // 4
    x = curve["x"] + (step + 0.5 - t0) / (t1 - t0) * curve["width"]
    place = (round(x), curve["y"] + 5)  # a click is on a whole pixel
    screen.page.mouse.move(*place)
    told = screen.page.locator("#tooltip").inner_text()
    assert f"node {step}: {plan.graph.nodes[step].label}" in told
    assert "state " in told
    screen.page.mouse.click(*place)
    check_moment(screen, plan, step)
    assert screen.page.locator("#moment-title").inner_text().lower().startswith("live")
    screen.press(".")
    check_moment(screen, plan, step + 1)
    screen.press(",", ",")
    check_moment(screen, plan, step - 1)
    screen.page.locator("#to-peak").click()
    check_moment(screen, plan, plan.peak_step)
    screen.press(".", *"," * (plan.peak_step + 5))
    check_moment(screen, plan, 0)
    screen.press("m")
    check_moment(screen, plan, plan.peak_step)
    assert screen.page.locator("#details h3").count() == 1


def test_values_related_to_a_value_are_one_click_away(screen):
    plan = strategy_plans()["cheap"]
    screen.press("4")
    graph = plan.graph
    copy = next(v for v in graph.values if v.node and v.node.copy_of and v.node.level == 1)
    original = copy.node.copy_of.outputs[copy.index]
    screen.page.fill("#search", graph.names[original])
    heading = screen.page.locator("#details h3")
    assert heading.inner_text().split()[0] == graph.names[original]
    at = graph.position[copy.node]
    screen.page.get_by_role("button", name=f"show node {at}, {graph.names[copy]} ").click()
    assert heading.inner_text().split()[0] == graph.names[copy]
    t0, t1, _, _ = screen.view()
    assert t0 <= at < t1
    screen.page.get_by_role(
        "button", name=f"show {called(plan, original)}", exact=True
    ).last.click()
    assert heading.inner_text().split()[0] == graph.names[original]
    reader = graph.uses[original][0]
    named = f"show node {reader}, {graph.nodes[reader].label}"
    screen.page.get_by_role("button", name=named, exact=True).click()
    assert heading.inner_text().split()[0] == graph.names[graph.nodes[reader].outputs[0]]


def test_arrows_turn_tabs(screen):
    screen.page.locator("[role=tab]").nth(1).click()
    selected = screen.page.locator("[role=tab][aria-selected=true]")
    before = screen.view()
    for key, name in (("ArrowRight", "packed"), ("ArrowLeft", "sharing"), ("ArrowLeft", "none"),
                      ("ArrowLeft", "sublinear"), ("ArrowRight", "none")):  # fmt: skip
        assert screen.press(key) == before
        assert selected.all_inner_texts() == [name]
        assert screen.page.evaluate("document.activeElement.textContent") == name


def test_all_plans_side_by_side(screen):
    screen.press("a")
    assert not screen.page.locator("#map").is_visible()
    buttons = screen.page.locator("#all button")
    for told, plan in zip(buttons.all_inner_texts(), strategy_plans().values(), strict=True):
        assert f"arena {plan.arena_bytes / 2**20:.1f} MiB" in told
    painted = screen.page.evaluate(
        "[...document.querySelectorAll('#all canvas')].map(c => c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.filter((_, i) => i % 4 === 3)"
        ".reduce((n, a) => n + (a > 0), 0) / c.width / c.height)"
    )
    steps = max(len(plan.graph.nodes) for plan in strategy_plans().values())
    height = max(plan.arena_bytes for plan in strategy_plans().values())
    for share, plan in zip(painted, strategy_plans().values(), strict=True):
        area = sum(plan.live_profile) / steps / height
        assert share == pytest.approx(area, rel=0.15, abs=0.02)
    buttons.nth(3).click()
    selected = screen.page.locator("[role=tab][aria-selected=true]")
    assert selected.all_inner_texts() == [NAMES[3]]
    assert screen.page.locator("#map").is_visible()


def test_a_selected_value_stays_selected_on_another_tab(screen):
    screen.page.fill("#search", "%x")
    screen.press("Tab")
    heading = screen.page.locator("#details h3")
    assert heading.inner_text().strip() == "%x"
    screen.page.locator("[role=tab]").nth(2).click()
    assert heading.inner_text().strip() == "%x"
    buffer = strategy_plans()["packed"].buffers[
        next(p.buffer for v, p in strategy_plans()["packed"].placements.items()
             if strategy_plans()["packed"].graph.names[v] == "%x")
    ]  # fmt: skip
    assert f"{buffer.offset:#x} to" in screen.page.locator("#details").inner_text()
