"""The page in a browser: what the pointer finds, search, tabs, keys, themes.

Where things should be is worked out here from the plan, not asked of the page's script.
"""

from pathlib import Path

import pytest
from view.chromium import opened
from view.networks import STRATEGIES, planned

import graphc as g
from graphc.view.page import page

pytestmark = pytest.mark.browser

NAMES = ("none", "sharing", "packed", "cheap", "sublinear")
PLANS = {name: planned(**options) for name, options in zip(NAMES, STRATEGIES, strict=True)}
SIZE = {"width": 1440, "height": 900}
PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
SHOWN = (
    "page-resnet50-light.png", "page-resnet50-dark.png", "all-resnet50-light.png",
    "page-gpt2-dark.png", "page-lstm64-light.png",
)  # fmt: skip
"""What docs/viewing.md shows of all that is tried."""


@pytest.fixture(scope="module")
def browser():
    with opened() as found:
        yield found


class Screen:
    """A page that is open, what it has complained of, and where it must show a plan."""

    def __init__(self, browser, path, scheme="light"):
        self.page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#map[data-draws]")
        self.box = self.page.locator("#map").bounding_box()

    def view(self):
        """Once the next frame is drawn: the times and addresses at the edges of the map."""
        self.page.evaluate(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )
        shown = self.page.evaluate("({...document.getElementById('map').dataset})")
        return [float(shown[name]) for name in ("t0", "t1", "a0", "a1")]

    def place(self, time, address):
        """CSS pixels of a time and an address."""
        t0, t1, a0, a1 = self.view()
        x = self.box["x"] + (time - t0) / (t1 - t0) * self.box["width"]
        y = self.box["y"] + (1 - (address - a0) / (a1 - a0)) * self.box["height"]
        return x, y

    def hover(self, time, address):
        """The tooltip there, or None."""
        self.page.mouse.move(*self.place(time, address))
        tooltip = self.page.locator("#tooltip")
        return tooltip.inner_text() if tooltip.is_visible() else None

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        return self.view()


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "plan.html"
    path.write_text(page(PLANS, "a small network"))
    return path


@pytest.fixture
def screen(browser, path):
    found = Screen(browser, path)
    yield found
    found.page.close()
    assert found.complaints == []
    assert found.requests == [path.as_uri()]


def written_last(plan, buffer, step):
    """The name of the value whose content a buffer has at a step, by all placements."""
    born = {}
    for value, placement in plan.placements.items():
        if placement.buffer == buffer.index and placement.how != "view":
            at = -1 if value.node is None else plan.graph.position[value.node]
            if at <= step:
                born[value] = at
    return plan.graph.names[max(born, key=born.__getitem__)] if born else "workspace"


def large(plan, screen):
    """Buffers that are some pixels wide and high while all plans are shown whole."""
    steps = max(len(each.graph.nodes) for each in PLANS.values())
    height = max(each.arena_bytes for each in PLANS.values())
    for buffer in plan.buffers:
        last = min(buffer.lifetime.last, len(plan.graph.nodes))
        wide = (last - buffer.lifetime.first) / steps * screen.box["width"]
        high = buffer.bytes / height * screen.box["height"]
        if wide > 5 and high > 5:
            yield buffer, (buffer.lifetime.first + last) // 2


@pytest.mark.parametrize("name", NAMES)
def test_hover_names_what_is_there(screen, name):
    plan = PLANS[name]
    screen.press(str(NAMES.index(name) + 1))
    found = list(large(plan, screen))
    assert len(found) >= 8
    for buffer, step in found:
        told = screen.hover(step + 0.5, buffer.offset + buffer.bytes / 2)
        assert told.split()[0] == written_last(plan, buffer, step)
        assert f"\n{buffer.kind}, " in told
        assert f"node {step}: {plan.graph.nodes[step].label}" in told


def test_hover_over_a_state_that_was_not_updated_yet(screen):
    plan = PLANS["packed"]
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
    free = max(each.arena_bytes for each in PLANS.values())
    screen.press("3")
    assert screen.hover(1.5, free * 0.999) is None


def test_hover_after_zooming(screen):
    plan = PLANS["packed"]
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


def test_a_click_shows_all_of_a_value(screen):
    plan = PLANS["packed"]
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
    readers = plan.graph.uses[value]
    assert f"readers: {len(readers)}" in text.lower()
    for reader in readers:
        assert f"node {reader}, {plan.graph.nodes[reader].label}" in text


@pytest.mark.parametrize("name", NAMES)
def test_search_finds_a_layer_and_moves_to_it(screen, name):
    plan = PLANS[name]
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
    assert heading.inner_text() == f"{graph.names[wanted[0]]} {wanted[0].node.label}"
    screen.page.keyboard.press("Enter")
    assert heading.inner_text().split()[0] == graph.names[wanted[1]]
    screen.page.keyboard.press("Escape")
    screen.press("p")
    assert screen.page.locator("#found").inner_text() == ""
    assert screen.page.locator("#search").input_value() == ""


def test_search_for_what_is_not_there(screen):
    before = screen.view()
    screen.page.fill("#search", "no such layer")
    assert screen.page.locator("#found").inner_text() == "no match"
    assert screen.view() == before


def test_tabs_have_common_axes_and_their_own_figures(screen):
    steps = max(len(each.graph.nodes) for each in PLANS.values())
    height = max(each.arena_bytes for each in PLANS.values())
    tabs = screen.page.locator("[role=tab]")
    assert tabs.all_inner_texts() == list(NAMES)
    for number, (name, plan) in enumerate(PLANS.items()):
        tabs.nth(number).click()
        assert screen.view() == [0, steps, 0, height]
        selected = screen.page.locator("[role=tab][aria-selected=true]")
        assert selected.all_inner_texts() == [name]
        assert f"{plan.arena_bytes} bytes" in screen.page.locator("#summary").inner_text()
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
        figure, unit = size.split()
        scale = 1024 ** ["B", "KiB", "MiB", "GiB"].index(unit)
        assert float(figure) * scale == pytest.approx(buffer.bytes, rel=0.01)


def test_what_is_live_at_another_node(screen):
    plan = PLANS["packed"]
    screen.press("3")
    curve = screen.page.locator("#curve").bounding_box()
    t0, t1, _, _ = screen.view()
    step = len(plan.graph.nodes) // 4
    place = (curve["x"] + (step + 0.5 - t0) / (t1 - t0) * curve["width"], curve["y"] + 5)
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


def test_what_is_related_to_a_value_is_one_click_away(screen):
    plan = PLANS["cheap"]
    screen.press("4")
    graph = plan.graph
    copy = next(v for v in graph.values if v.node and v.node.copy_of and v.node.level == 1)
    original = copy.node.copy_of.outputs[copy.index]
    screen.page.fill("#search", graph.names[original])
    heading = screen.page.locator("#details h3")
    assert heading.inner_text().split()[0] == graph.names[original]
    at = graph.position[copy.node]
    screen.page.get_by_role("button", name=f"node {at}, {graph.names[copy]} ").click()
    assert heading.inner_text().split()[0] == graph.names[copy]
    t0, t1, _, _ = screen.view()
    assert t0 <= at < t1
    screen.page.get_by_role("button", name=f"{graph.names[original]} {original.node.label}").click()
    assert heading.inner_text().split()[0] == graph.names[original]
    reader = graph.uses[original][0]
    named = f"node {reader}, {graph.nodes[reader].label}"
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
    for told, plan in zip(buttons.all_inner_texts(), PLANS.values(), strict=True):
        assert f"arena {plan.arena_bytes / 2**20:.1f} MiB" in told
    painted = screen.page.evaluate(
        "[...document.querySelectorAll('#all canvas')].map(c => c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.filter((_, i) => i % 4 === 3)"
        ".reduce((n, a) => n + (a > 0), 0) / c.width / c.height)"
    )
    steps = max(len(plan.graph.nodes) for plan in PLANS.values())
    height = max(plan.arena_bytes for plan in PLANS.values())
    for share, plan in zip(painted, PLANS.values(), strict=True):
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
    buffer = PLANS["packed"].buffers[
        next(p.buffer for v, p in PLANS["packed"].placements.items()
             if PLANS["packed"].graph.names[v] == "%x")
    ]  # fmt: skip
    assert f"{buffer.offset:#x} to" in screen.page.locator("#details").inner_text()


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
    assert screen.press("-", "-") == pytest.approx(whole)
    assert screen.press("+", "0") == whole
    plan = PLANS["cheap"]
    assert screen.press("4", "f") == [0, len(plan.graph.nodes), 0, plan.arena_bytes]
    assert screen.press("0") == whole
    assert screen.press("ArrowLeft", "ArrowDown") == whole
    screen.press("m")
    assert screen.page.locator("#details h3").count() == 1
    screen.press("Escape")
    assert screen.page.locator("#details h3").count() == 0


def test_time_in_seconds(screen):
    plan = PLANS["packed"]
    screen.press("3", "t")
    assert screen.page.locator("#time").inner_text() == "time: seconds"
    from graphc.passes.cost import CostModel

    costs = CostModel(plan.device)
    seconds = [costs.seconds(node) for node in plan.graph.nodes]
    longest = max(range(len(seconds)), key=seconds.__getitem__)
    middle = sum(seconds[:longest]) + seconds[longest] / 2
    state = next(buffer for buffer in plan.buffers if buffer.kind == "state" and buffer.bytes > 9e5)
    told = screen.hover(middle, state.offset + state.bytes / 2)
    assert f"node {longest}:" in told
    screen.press("t")
    assert screen.view()[1] == max(len(each.graph.nodes) for each in PLANS.values())


def test_a_kind_that_is_not_shown(screen):
    plan = PLANS["packed"]
    screen.press("3")
    buffer, step = next(e for e in large(plan, screen) if e[0].kind == "feature map")
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
    seen = set()
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
            buffer.kind.replace(" ", "-"),
        ).strip()
        wanted = [int(css[at : at + 2], 16) for at in (1, 3, 5)]
        for found, channel in zip((red, green, blue), wanted, strict=True):
            assert found == pytest.approx(channel, rel=0.1, abs=2)
        seen.add(buffer.kind)
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


def save(picture, name, request):
    if name in SHOWN and request.config.getoption("--update-golden"):
        (PICTURES / name).write_bytes(picture)
    assert picture.startswith(b"\x89PNG")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(
    "network", ["resnet50", pytest.param("lstm64", marks=pytest.mark.slow),
                pytest.param("gpt2", marks=pytest.mark.slow)],
)  # fmt: skip
def test_pages_of_large_networks(browser, tmp_path, request, network, scheme):
    """`--update-golden` keeps their pictures in docs/pictures."""
    from graphc.models import gpt2, lstm, resnet

    make = {"resnet50": resnet, "lstm64": lstm, "gpt2": gpt2}[network]
    names = NAMES if network == "resnet50" else ("packed", "sublinear")
    chosen = dict(zip(NAMES, STRATEGIES, strict=True))
    plans = {name: g.plan(make(), optimizer=g.optim.SGD(), **chosen[name]) for name in names}
    path = tmp_path / "plan.html"
    path.write_text(page(plans, network))
    screen = Screen(browser, path, scheme)
    screen.press(str(len(names)), "m", "f")
    screen.page.mouse.move(*screen.place(screen.view()[1] * 0.3, screen.view()[3] * 0.2))
    save(screen.page.screenshot(), f"page-{network}-{scheme}.png", request)
    screen.press("a")
    save(screen.page.screenshot(), f"all-{network}-{scheme}.png", request)
    screen.page.close()
    assert screen.complaints == []
