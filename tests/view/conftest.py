"""A browser, and a page of small plans that is open in it."""

import pytest
from view.chromium import opened
from view.screen import Screen, strategy_plans

from graphc.view.page import page


@pytest.fixture(scope="module")
def browser():
    with opened() as found:
        yield found


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "plan.html"
    path.write_text(page(strategy_plans(), "a small network"))
    return path


@pytest.fixture
def screen(browser, path):
    found = Screen(browser, path)
    yield found
    found.page.close()
    assert found.complaints == []
    assert found.requests == [path.as_uri()]


@pytest.fixture
def show(browser, tmp_path):
    """Open a page of plans; it must not have complained when the test ends."""
    opened = []

    def open_page(plans, scheme="light", **options):
        path = tmp_path / f"page{len(opened)}.html"
        path.write_text(page(plans, "plans"))
        opened.append(Screen(browser, path, scheme, **options))
        return opened[-1]

    yield open_page
    for screen in opened:
        screen.page.close()
        assert screen.complaints == []
