"""What is shown is in the address of the page, and is shown again where that is opened."""

from urllib.parse import parse_qs

import pytest
from view.screen import NAMES, Screen, called, strategy_plans

pytestmark = pytest.mark.browser


def state(screen):
    """All that an address must bring back."""
    return {
        "view": screen.view(),
        "tab": screen.page.locator("[role=tab][aria-selected=true]").inner_text(),
        "node": screen.page.locator("#moment-title").inner_text(),
        "heading": screen.page.locator("#details h3").all_inner_texts(),
        "time": screen.page.locator("#time").inner_text(),
        "beside": screen.page.locator("#beside").get_attribute("aria-pressed"),
    }


def address(screen):
    """The address of the page, once it is written."""
    screen.page.wait_for_timeout(350)
    return screen.page.url


def opened(browser, url):
    """A page at an address, in another window."""

    class Place:
        def as_uri(self):
            return url

    return Screen(browser, Place())


def restored(browser, screen):
    again = opened(browser, address(screen))
    found = state(again)
    again.page.close()
    assert again.complaints == []
    return found


def test_the_address_leads_back_to_what_is_shown(browser, screen):
    before = state(screen)
    assert restored(browser, screen) == before
    plan = strategy_plans()["cheap"]
    screen.press("4")
    assert restored(browser, screen) == state(screen) != before
    copy = next(v for v in plan.graph.values if v.node and v.node.copy_of)
    screen.choose(plan, copy)
    screen.page.locator("#map").focus()
    assert state(screen)["heading"] == [called(plan, copy)]
    assert restored(browser, screen) == state(screen)
    screen.press(".", ".", "+", "ArrowLeft")
    found = state(screen)
    assert restored(browser, screen) == found
    screen.press("t")
    assert restored(browser, screen) == state(screen) != found
    screen.press("t", "a")
    again = browser.new_page()
    again.goto(address(screen))
    again.wait_for_selector("#all:visible")
    assert again.locator("#beside").get_attribute("aria-pressed") == "true"
    again.close()


def test_the_address_names_what_is_selected(screen):
    screen.press("2", ",")
    found = parse_qs(address(screen).partition("#")[2])
    assert found["plan"] == ["sharing"]
    assert found["node"] == [str(strategy_plans()["sharing"].peak_step - 1)]
    state_name = strategy_plans()["sharing"].graph.states[0].name
    screen.page.fill("#search", f"@{state_name}")
    found = parse_qs(address(screen).partition("#")[2])
    assert found["value"] == [f"@{state_name}"]


def test_a_workspace_is_led_back_to(browser, screen):
    plan = strategy_plans()["none"]
    _, buffer = max(plan.workspaces.items(), key=lambda entry: entry[1].bytes)
    place = screen.place(buffer.lifetime.first + 0.5, buffer.offset + buffer.bytes / 2)
    screen.page.mouse.click(*place)
    assert screen.heading().startswith("workspace of ")
    assert restored(browser, screen) == state(screen)


@pytest.mark.parametrize("fragment", [
    "plan=none+such&node=7", "node=x&value=%25none&zoom=1+2", "zoom=a+b+c+d", "zoom=9+1+9+1",
    "node=-4", "workspace=99999", "=&&%", "node=99999999999999999999",
])  # fmt: skip
def test_an_address_of_what_is_not_there_shows_the_rest(browser, path, fragment):
    screen = opened(browser, f"{path.as_uri()}#{fragment}")
    selected = screen.page.locator("[role=tab][aria-selected=true]").inner_text()
    assert selected == NAMES[0]
    assert screen.page.locator("#details h3").count() == 0
    steps = max(len(plan.graph.nodes) for plan in strategy_plans().values())
    assert screen.view() == [
        0,
        steps,
        0,
        max(plan.arena_bytes for plan in strategy_plans().values()),
    ]
    screen.page.close()
    assert screen.complaints == []


def test_another_address_in_the_same_window_is_followed(screen, path):
    screen.press("3", ".", "+")
    there = state(screen)
    url = address(screen)
    screen.press("1", "0")
    address(screen)
    screen.page.evaluate("url => { location.href = url; }", url)
    screen.page.wait_for_timeout(100)
    assert state(screen) == there
    screen.requests[1:] = []
