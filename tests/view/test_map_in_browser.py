"""The map in a browser: what the pointer finds, zooming and moving, time, kinds, themes.

Where things should be is worked out here from the plan, not asked of the page's script.
"""

import pytest
from view.networks import planned
from view.replay import replayed
from view.screen import NAMES, Screen, large, strategy_plans, written_last

import graphc as g
from graphc.plans.names import kind_label
from graphc.view.page import page

pytestmark = pytest.mark.browser


@pytest.mark.parametrize("name", NAMES)
def test_hover_names_what_is_there(screen, name):
    plan = strategy_plans()[name]
    screen.press(str(NAMES.index(name) + 1))
    found, held = list(large(plan, screen)), replayed(plan)
    assert len(found) >= 8
    for buffer, step in found:
        told = screen.hover(step + 0.5, buffer.offset + buffer.bytes / 2)
        assert told.split()[0] == written_last(plan, buffer, step)
        assert f"\n{kind_label(held[step, buffer.index][1])}, " in told
        assert f"node {step}: {plan.graph.nodes[step].label}" in told


def test_hover_over_a_state_that_was_not_updated_yet(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    state = max((b for b in plan.buffers if b.kind == "state"), key=lambda b: b.bytes)
    told = screen.hover(0.5, state.offset + state.bytes / 2)
    assert told.startswith("@")
    assert "in the region of states" in told


@pytest.mark.parametrize("axis", [0, 1])
def test_hover_over_parts_of_a_concatenation(browser, tmp_path, axis):
    """Parts lie in one buffer, in two pieces or row by row; each byte has its own value."""
    x = g.input("x", (4, 2**16))
    parts = [g.tanh(x), g.relu(x)]
    plan = g.plan(outputs=[g.exp(g.concat(parts, axis))], reorder=False)
    places = {v.node.op.name: (v, p) for v, p in plan.placements.items() if p.how == "part"}
    assert set(places) == {"tanh", "relu"}
    path = tmp_path / "plan.html"
    path.write_text(page({"parts": plan}, "parts"))
    screen = Screen(browser, path)
    step = max(plan.graph.position[v.node] for v, _ in places.values())
    assert plan.graph.nodes[step + 1].op.name == "concat"
    for value, place in places.values():
        strides = place.strides or (4 * 2**16, 4)
        for row in range(4):
            address = plan.address(value) + row * strides[0] + 2**15 * strides[1]
            assert screen.hover(step + 0.5, address).split()[0] == plan.graph.names[value]
    screen.page.close()
    assert screen.complaints == []


def test_hover_over_nothing(screen):
    free = max(each.arena_bytes for each in strategy_plans().values())
    screen.press("3")
    assert screen.hover(1.5, free * 0.999) is None


def test_hover_after_zooming(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    buffer, step = max(large(plan, screen), key=lambda entry: entry[0].bytes)
    before = screen.view()
    screen.page.mouse.move(*screen.place(step + 0.5, buffer.offset + buffer.bytes / 2))
    screen.page.mouse.wheel(0, -300)
    after = screen.view()
    assert after[1] - after[0] < (before[1] - before[0]) / 2
    assert after[3] - after[2] < (before[3] - before[2]) / 2
    told = screen.hover(step + 0.5, buffer.offset + buffer.bytes / 2)
    assert told.split()[0] == written_last(plan, buffer, step)


def test_the_wheel_with_shift_or_alt_zooms_one_axis(screen):
    for key, grown, kept in (("Shift", (0, 1), (2, 3)), ("Alt", (2, 3), (0, 1))):
        before = screen.press("0")
        screen.page.mouse.move(*screen.place(before[1] / 2, before[3] / 2))
        screen.page.keyboard.down(key)
        screen.page.mouse.wheel(0, -120)
        after = screen.view()
        screen.page.keyboard.up(key)
        assert [before[i] for i in kept] == [after[i] for i in kept]
        low, high = grown
        assert after[high] - after[low] < before[high] - before[low]


def test_dragging_moves(screen):
    screen.press("+", "+", "+")
    before = screen.view()
    x, y = screen.place((before[0] + before[1]) / 2, (before[2] + before[3]) / 2)
    screen.page.mouse.move(x, y)
    screen.page.mouse.down()
    screen.page.mouse.move(x - 50, y + 20, steps=5)
    screen.page.mouse.up()
    after = screen.view()
    moved = 50 / screen.box["width"] * (before[1] - before[0])
    assert after[0] - before[0] == pytest.approx(moved, rel=0.1)
    assert after[2] > before[2]
    assert screen.page.locator("#details").inner_text() == "Click a rectangle."


def test_keys_move_zoom_and_reset(screen):
    whole = screen.view()
    near = screen.press("+", "+")
    assert near[1] - near[0] == pytest.approx((whole[1] - whole[0]) / 1.4**2)
    right = screen.press("ArrowRight")
    assert right[0] - near[0] == pytest.approx(0.2 * (near[1] - near[0]))
    assert screen.press("ArrowLeft") == pytest.approx(near)
    up = screen.press("ArrowUp")
    assert up[2] - near[2] == pytest.approx(0.2 * (near[3] - near[2]))
    assert screen.press("ArrowDown") == pytest.approx(near)
    assert screen.press("-", "-") == pytest.approx(whole, abs=1e-6)
    assert screen.press("+", "0") == whole
    plan = strategy_plans()["cheap"]
    assert screen.press("4", "f") == [0, len(plan.graph.nodes), 0, plan.arena_bytes]
    assert screen.press("0") == whole
    assert screen.press("ArrowLeft", "ArrowDown") == whole
    screen.press("m")
    assert screen.page.locator("#details h3").count() == 1
    screen.press("Escape")
    assert screen.page.locator("#details h3").count() == 0


def test_time_in_seconds(screen):
    plan = strategy_plans()["packed"]
    screen.press("3", "t")
    assert screen.page.locator("#time").inner_text() == "show nodes"
    from graphc.plans.cost_model import CostModel

    costs = CostModel(plan.device)
    seconds = [costs.seconds(node) for node in plan.graph.nodes]
    longest = max(range(len(seconds)), key=seconds.__getitem__)
    middle = sum(seconds[:longest]) + seconds[longest] / 2
    state = next(buffer for buffer in plan.buffers if buffer.kind == "state" and buffer.bytes > 9e5)
    told = screen.hover(middle, state.offset + state.bytes / 2)
    assert f"node {longest}:" in told
    screen.press("t")
    assert screen.view()[1] == max(len(each.graph.nodes) for each in strategy_plans().values())


def test_a_kind_that_is_not_shown(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    held = replayed(plan)
    found = large(plan, screen)
    buffer, step = next(e for e in found if held[e[1], e[0].index][1] == "feature map")
    place = (step + 0.5, buffer.offset + buffer.bytes / 2)
    assert screen.hover(*place)
    screen.page.uncheck('#kinds input[name="feature map"]')
    assert screen.hover(*place) is None
    screen.page.check('#kinds input[name="feature map"]')
    assert screen.hover(*place)


def pixel(screen, time, address):
    x, y = screen.place(time, address)
    return screen.page.evaluate(
        "([x, y]) => { const map = document.getElementById('map');"
        "return [...map.getContext('2d').getImageData(x, y, 1, 1).data]; }",
        [x - screen.box["x"], y - screen.box["y"]],
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_rectangles_have_the_colour_of_their_kind(browser, tmp_path, scheme):
    path, plan = tmp_path / "plan.html", planned("wide mlp")
    path.write_text(page({"packed": plan}, "colours"))
    screen = Screen(browser, path, scheme)
    seen, held = set(), replayed(plan)
    for buffer in plan.buffers:
        # Above the middle, where a text may stand; low rectangles are asked for elsewhere.
        high = buffer.bytes / screen.view()[3] * screen.box["height"]
        if high < 20:
            continue
        middle = (buffer.lifetime.first + min(buffer.lifetime.last, len(plan.graph.nodes))) / 2
        red, green, blue, opaque = pixel(screen, middle, buffer.offset + 0.85 * buffer.bytes)
        assert opaque == 255
        css = screen.page.evaluate(
            "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)",
            held[int(middle), buffer.index][1].replace(" ", "-"),
        ).strip()
        wanted = [int(css[at : at + 2], 16) for at in (1, 3, 5)]
        for found, channel in zip((red, green, blue), wanted, strict=True):
            assert found == pytest.approx(channel, rel=0.1, abs=2)
        seen.add(held[int(middle), buffer.index][1])
    assert {"input", "feature map", "gradient"} <= seen
    screen.page.close()


def test_light_and_dark(browser, path):
    for scheme, other in (("light", "dark"), ("dark", "light")):
        screen = Screen(browser, path, scheme)
        theme = "document.documentElement.dataset.theme"
        assert screen.page.evaluate(theme) == scheme
        screen.press("d")
        assert screen.page.evaluate(theme) == other
        screen.page.close()
        assert screen.complaints == []


def test_a_browser_that_is_too_old_says_so(browser, path):
    page = browser.new_page()
    page.add_init_script("delete window.DecompressionStream")
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelector('main').textContent.includes('2023')")
    assert "DecompressionStream is not defined" in page.inner_text("main")
    page.close()


def test_a_narrow_window_and_a_plan_without_nodes(browser, tmp_path):
    path = tmp_path / "empty.html"
    path.write_text(page({"only": g.plan(outputs=[g.input("x", (4,))])}, "an input alone"))
    screen = Screen(browser, path)
    assert screen.hover(0.5, 8).split()[0] == "%x"
    screen.page.set_viewport_size({"width": 500, "height": 700})
    screen.view()
    assert not screen.page.locator("[role=tab]").is_visible()
    screen.page.close()
    assert screen.complaints == []
