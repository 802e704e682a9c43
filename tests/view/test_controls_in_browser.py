"""What the reader does: the tooltip follows, the focus stays, tabs keep what is selected."""

from itertools import pairwise

import pytest
from view.screen import NAMES, VARIANTS, branches, called, large, strategy_plans, written_last

import graphc as g

pytestmark = pytest.mark.browser

FOCUS = "document.activeElement"


def biggest(plan, screen):
    """A step and an address in a large buffer that is no state."""
    found = [entry for entry in large(plan, screen) if entry[0].kind != "state"]
    buffer, step = max(found, key=lambda entry: entry[0].bytes)
    return buffer, step + 0.5, buffer.offset + buffer.bytes / 2


def under(screen, x, y):
    """Time and address of a place on the screen."""
    t0, t1, a0, a1 = screen.view()
    time = t0 + (x - screen.box["x"]) / screen.box["width"] * (t1 - t0)
    return time, a0 + (1 - (y - screen.box["y"]) / screen.box["height"]) * (a1 - a0)


def wanted_at(plan, time, address):
    """The first word and the last line of the tooltip there, or None."""
    step = int(time)
    if step >= len(plan.graph.nodes):
        return None
    there = [b for b in plan.live_at(step) if b.offset <= address < b.offset + b.bytes]
    if not there:
        return None
    return written_last(plan, there[0], step), f"node {step}: {plan.graph.nodes[step].label}"


def test_the_tooltip_tells_what_is_there_after_the_view_has_changed(screen):
    """The wheel turns under a pointer that rests; after a key, the pointer has to move."""
    plan = strategy_plans()["packed"]
    screen.press("3")
    _, time, address = biggest(plan, screen)
    x, y = screen.place(time, address)
    screen.page.mouse.move(x, y)
    seen = set()
    keys = ("+", "ArrowDown", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowLeft", "-")
    for turn, key in enumerate((*keys, "ArrowDown", "-", "+", "ArrowRight", "+", "-", "0", "f")):
        screen.press(key)
        assert screen.tooltip() is None
        screen.page.mouse.move(x + 1, y)
        screen.page.mouse.move(x, y)
        for _ in range(turn % 3):
            screen.page.mouse.wheel(0, -100)
            told = screen.tooltip()
            wanted = wanted_at(plan, *under(screen, x, y))
            found = told and (told.split()[0], told.split("\n")[-1])
            assert found == wanted
            seen.add(wanted)
    assert len(seen) >= 4


def test_the_tooltip_is_that_of_the_tab(screen):
    _, time, address = biggest(strategy_plans()["none"], screen)
    x, y = screen.place(time, address)
    for tab, plan in enumerate(strategy_plans().values(), 1):
        screen.press(str(tab))
        screen.page.mouse.move(x + 1, y)
        screen.page.mouse.move(x, y)
        told = screen.tooltip()
        assert (told and told.split("\n")[-1]) == (wanted_at(plan, time, address) or [None])[-1]


def test_dragging_hides_the_tooltip(screen):
    screen.press("+", "+")
    t0, t1, a0, a1 = screen.view()
    x, y = screen.place((t0 + t1) / 2, a0 + (a1 - a0) / 4)
    screen.page.mouse.move(x, y)
    assert screen.tooltip() is not None
    screen.page.mouse.down()
    screen.page.mouse.move(x - 40, y)
    assert screen.tooltip() is None
    screen.page.mouse.up()


@pytest.mark.parametrize("button", ["right", "middle"])
def test_only_the_first_button_selects_and_drags(screen, button):
    screen.press("+", "+")
    before = screen.view()
    x, y = screen.place((before[0] + before[1]) / 2, before[2] + (before[3] - before[2]) / 4)
    screen.page.mouse.click(x, y, button=button)
    assert screen.page.locator("#details h3").count() == 0
    screen.page.mouse.down(button=button)
    screen.page.mouse.move(x - 60, y + 30, steps=4)
    screen.page.mouse.up(button=button)
    assert screen.view() == before
    screen.page.mouse.click(x, y)
    assert screen.page.locator("#details h3").count() == 1


def test_the_focus_stays_on_a_kind(screen):
    for name in ("feature map", "state"):
        screen.page.focus(f'#kinds input[name="{name}"]')
        for key in (".", ".", ",", "m", "d", "d", "2", "3"):
            screen.press(key)
            assert screen.page.evaluate(f"{FOCUS}.name") == name
    screen.page.focus('#kinds input[name="state"]')
    screen.press(" ")
    assert not screen.page.is_checked('#kinds input[name="state"]')
    screen.press(".")
    assert not screen.page.is_checked('#kinds input[name="state"]')


def test_the_focus_goes_to_what_a_link_shows(screen):
    plan = strategy_plans()["cheap"]
    screen.press("4")
    copied = next(v for v in plan.graph.values if v.node and v.node.copy_of)
    screen.choose(plan, copied)
    before = screen.heading()
    screen.page.locator("#details button").first.focus()
    screen.press("Enter")
    assert screen.heading() != before
    assert screen.page.evaluate(f"{FOCUS}.textContent") == screen.heading()
    screen.press("Tab")
    assert screen.page.evaluate(f"{FOCUS}.closest('#details') !== null")


def test_the_focus_stays_on_what_is_live(screen):
    screen.press("3", ".")
    screen.page.locator("#moment button").nth(2).focus()
    screen.press(".")
    third = screen.page.locator("#moment button").nth(2).inner_text()
    assert screen.page.evaluate(f"{FOCUS}.innerText") == third
    screen.page.focus("#to-peak")
    screen.press("Enter")
    assert screen.page.evaluate(f"{FOCUS}.id") == "moment-title"


def test_the_focus_goes_along_side_by_side(screen):
    screen.press("2")
    screen.page.focus("#map")
    screen.press("a")
    assert screen.page.evaluate(f"{FOCUS}.innerText").startswith("sharing")
    screen.press("Enter")
    assert screen.page.evaluate(f"{FOCUS}.id") == "map"


def test_tabs_name_what_they_control(screen):
    tabs = screen.page.locator("[role=tab]")
    for number, name in enumerate(NAMES):
        tabs.nth(number).click()
        panel = screen.page.get_by_role("tabpanel", name=name, exact=True)
        assert panel.get_attribute("id") == tabs.nth(number).get_attribute("aria-controls")


def test_n_and_p_turn_to_the_next_and_the_previous_match(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    screen.page.fill("#search", "unit0/reduce")
    names, values = plan.graph.names, plan.graph.values
    wanted = [names[v] for v in values if v.node and "unit0/reduce" in v.node.label]
    wanted += [names[v] for v in values if v.node is None and "unit0/reduce" in names[v]]
    screen.page.focus("#map")
    at = 0
    for key, turn in (("n", 1), ("n", 1), ("p", -1), ("n", 1), ("p", -1), ("p", -1), ("p", -1)):
        screen.press(key)
        at = (at + turn) % len(wanted)
        told = screen.page.locator("#found").inner_text()
        assert told == f"{at + 1} of {len(wanted)}"
        assert screen.heading().split()[0] == wanted[at]
    assert at == len(wanted) - 1


def test_a_tab_keeps_what_is_selected_by_what_computes_it(show):
    first, second = (
        g.plan(branches(), optimizer=g.optim.Momentum(), fuse=False, **VARIANTS[name])
        for name in ("sharing", "recursive")
    )
    screen = show({"sharing": first, "recursive": second})

    def computation(plan, value):
        """What computes a value of the forward pass, from the sources on."""
        if value.node is None:
            return plan.graph.names[value]
        operands = tuple(computation(plan, operand) for operand in value.node.inputs)
        return value.node.label, value.index, operands

    others = {
        computation(second, v): v
        for v in second.graph.values
        if v.node is None or v.node.phase == "forward"
    }
    for value in first.graph.values:
        if value.node is not None and value.node.phase != "forward":
            continue
        other = others[computation(first, value)]
        screen.press("Escape", "1")
        screen.choose(first, value)
        screen.page.locator("[role=tab]").nth(1).click()
        assert screen.heading() == called(second, other)
        buffer = second.buffers[second.placements[other].buffer]
        end = buffer.offset + buffer.bytes
        assert screen.details()["address"] == f"{buffer.offset:#x} to {end:#x}"
    copy = next(v for v in second.graph.values if v.node and v.node.phase == "mirror")
    screen.choose(second, copy)
    screen.page.locator("[role=tab]").nth(0).click()
    assert screen.page.locator("#details h3").count() == 0


def test_names_of_one_value_differ_between_tabs(show):
    """Numbers follow the order of nodes; the selection does not."""
    first, second = strategy_plans()["none"], strategy_plans()["sublinear"]
    screen = show({"none": first, "sublinear": second})
    last = [
        [v for v in plan.graph.values if v.node and v.node.phase == "update"]
        for plan in (first, second)
    ]
    for value in last[0][:: len(last[0]) // 8]:
        state = first.placements[value].over
        (other,) = [
            v
            for v in last[1]
            if second.placements[v].over is not None
            and second.graph.names[second.placements[v].over] == first.graph.names[state]
        ]
        assert first.graph.names[value] != second.graph.names[other]
        screen.press("Escape", "1")
        screen.choose(first, value)
        screen.page.locator("[role=tab]").nth(1).click()
        assert screen.heading() == called(second, other)


def test_a_window_of_1024_pixels(screen):
    screen.page.set_viewport_size({"width": 1024, "height": 700})
    screen.press("5")
    plan = strategy_plans()["sublinear"]
    screen.choose(plan, max(plan.graph.states, key=lambda state: state.type.bytes))
    screen.measure()
    assert screen.page.locator("header").bounding_box()["height"] < 50
    root = "document.documentElement"
    assert screen.page.evaluate(f"[{root}.scrollWidth, {root}.scrollHeight]") == [1024, 700]
    for name in ("#search", "#theme", "#details h3", "#details dd >> nth=5"):
        box = screen.page.locator(name).bounding_box()
        assert box["x"] + box["width"] <= 1024
        assert box["y"] + box["height"] <= 700
    is_cut = "tabs => tabs.scrollWidth > tabs.clientWidth"
    assert not screen.page.locator("#tabs").evaluate(is_cut)
    buttons = screen.page.locator("header button:visible, #search, #found, h1")
    boxes = [buttons.nth(at).bounding_box() for at in range(buttons.count())]
    boxes.sort(key=lambda box: box["x"])
    for box, after in pairwise(boxes):
        assert box["x"] + box["width"] <= after["x"]


def test_a_window_of_600_pixels(screen):
    screen.page.set_viewport_size({"width": 600, "height": 800})
    screen.press("5", "m")
    screen.measure()
    charts, aside = (screen.page.locator(name).bounding_box() for name in ("#charts", "aside"))
    assert charts["height"] == pytest.approx(0.7 * 800, abs=1)
    assert aside["y"] >= charts["y"] + charts["height"] - 1
    tall = screen.page.evaluate("document.documentElement.scrollHeight")
    assert tall == pytest.approx(aside["y"] + aside["height"], abs=1)
    assert screen.page.evaluate("document.documentElement.scrollWidth") == 600
    keys = screen.page.locator(".keys")
    keys.scroll_into_view_if_needed()
    box = keys.bounding_box()
    assert box["y"] >= 0
    assert box["y"] + box["height"] <= 800
    assert screen.page.evaluate("window.scrollY") > 0
