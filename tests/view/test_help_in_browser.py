"""Help, names of buttons, small windows, and what would lower a plan's arena."""

import re

import pytest
from view.screen import NAMES, Screen, strategy_plans, variants

from graphc.view.page import _template, page

pytestmark = pytest.mark.browser


def test_the_question_mark_shows_help_and_closes_it(screen):
    dialog = screen.page.locator("#help")
    for close in ("?", "Escape"):
        assert not dialog.is_visible()
        screen.press("?")
        assert dialog.is_visible()
        screen.press(close)
    for button in ("#show-help", "#show-keys"):
        screen.page.locator(button).click()
        assert dialog.is_visible()
        screen.page.get_by_role("button", name="close").click()
        assert not dialog.is_visible()


def test_help_names_every_key_of_the_page(screen):
    screen.press("?")
    told = set(screen.page.locator("#help kbd").all_inner_texts())
    listed = _template("page.js").split("const KEYS = {")[1].split("\n};")[0]
    keys = set(re.findall(r'(?:^|[,{]\s*|\n\s+)"?([^\s",]+)"?: (?:\(\)|\w)', listed))
    shown = {"ArrowLeft": "←", "ArrowRight": "→", "ArrowUp": "↑", "ArrowDown": "↓", "-": "−",
             "Escape": "Esc"}  # fmt: skip
    assert {"m", "a", "?", "0", "ArrowUp", "Escape"} <= keys
    assert {shown.get(key, key) for key in keys} - {"="} <= told


def test_keys_do_nothing_behind_help(screen):
    screen.press("3", "?")
    before = screen.view(), screen.page.locator("[role=tab][aria-selected=true]").inner_text()
    screen.press("+", "ArrowLeft", "2", "t")
    screen.press("Escape")
    assert before == (
        screen.view(), screen.page.locator("[role=tab][aria-selected=true]").inner_text()
    )  # fmt: skip


@pytest.mark.parametrize("width", [400, 700, 1440])
def test_the_zoom_is_reset_by_a_button_at_every_width(screen, width):
    screen.page.set_viewport_size({"width": width, "height": 800})
    screen.measure()
    whole = screen.view()
    near = screen.press("+", "+", "ArrowRight")
    assert near != whole
    button = screen.page.get_by_role("button", name="reset zoom")
    box = button.bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert screen.page.evaluate("document.documentElement.scrollWidth") == width
    button.click()
    assert screen.view() == whole


def test_every_button_of_a_narrow_window_is_within_it(screen):
    screen.page.set_viewport_size({"width": 400, "height": 800})
    buttons = screen.page.locator("header button:visible")
    for at in range(buttons.count()):
        box = buttons.nth(at).bounding_box()
        assert box["x"] + box["width"] <= 400


def test_buttons_name_what_they_do(screen):
    """Not what is: a label such as `time: nodes` says no action."""
    actions = re.compile(r"^(show|fit|use|reset|back to|close) ?")
    screen.press("4", "m", ".")
    names = screen.page.evaluate(
        "[...document.querySelectorAll('button:not([role=tab]), svg [role=button]')]"
        ".map(each => each.getAttribute('aria-label') ?? each.textContent)"
    )
    assert len(names) > 40
    assert [name for name in names if not actions.match(name)] == []
    before = screen.page.evaluate("document.documentElement.dataset.theme")
    other = {"light": "dark", "dark": "light"}[before]
    screen.page.get_by_role("button", name=f"use {other} colors").click()
    assert screen.page.evaluate("document.documentElement.dataset.theme") == other
    screen.page.get_by_role("button", name="show seconds").click()
    assert screen.page.get_by_role("button", name="show nodes").count() == 1


def test_the_tooltip_leaves_when_a_key_is_used_and_comes_with_the_pointer(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    buffer = max(plan.buffers, key=lambda b: b.bytes * (plan.lifetime_end(b) - b.lifetime.first))
    middle = (buffer.lifetime.first + plan.lifetime_end(buffer)) // 2
    place = screen.place(middle + 0.5, buffer.offset + buffer.bytes / 2)
    for key in ("ArrowRight", "+", "Tab", "m", "t", "t", "."):
        screen.press("0")
        screen.page.mouse.move(place[0] + 3, place[1])
        screen.page.mouse.move(*place)
        assert screen.tooltip() is not None
        screen.press(key)
        assert screen.tooltip() is None
    screen.press("0")
    screen.page.mouse.move(place[0] + 3, place[1])
    screen.press("Shift")
    assert screen.tooltip() is not None


def test_changes_that_lower_a_plan_are_shown_beside_it(browser, tmp_path):
    path = tmp_path / "plan.html"
    told = {"none": ["1.00 MiB, 2.00 MiB less: --allocate packed"], "cheap": ["nothing"]}
    path.write_text(page(strategy_plans(), "lower", lowering=told, opened="cheap"))
    screen = Screen(browser, path)
    selected = screen.page.locator("[role=tab][aria-selected=true]")
    assert selected.inner_text() == "cheap"
    for number, name in enumerate(NAMES, 1):
        screen.press(str(number))
        rows = screen.page.locator("#lowering li").all_inner_texts()
        assert rows == told.get(name, [])
        assert screen.page.locator("#lowering").is_visible() == (name in told)
    screen.page.close()
    assert screen.complaints == []


def test_names_of_variants_are_shown_side_by_side(show):
    screen = show(variants())
    screen.page.get_by_role("button", name="show all plans side by side").click()
    screen.page.get_by_role("button", name="show recursive").click()
    selected = screen.page.locator("[role=tab][aria-selected=true]")
    assert selected.inner_text() == "recursive"
