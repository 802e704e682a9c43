"""What a plan may have is a line in map and curve, with its bytes, where it is in range or near."""

import pytest
from view.screen import Screen, strategy_plans

from graphc.view.page import Limit, page

pytestmark = pytest.mark.browser


def packed():
    return strategy_plans()["packed"]


def show(browser, tmp_path, size, scheme="light"):
    path = tmp_path / "limit.html"
    path.write_text(page({"packed": packed()}, "limit", limits={"packed": Limit(size, "budget")}))
    return Screen(browser, path, scheme)


def label(screen, canvas):
    """The text of the line on a canvas, and how high it stands from the bottom, from 0 to 1."""
    found = [entry for entry in screen.texts(canvas) if entry[0].startswith("budget ")]
    return [(text, 1 - y / screen.size(canvas)[1]) for text, _, y in found]


def line_height(screen, canvas):
    """Where rows of the line's colour are, from 0 at the bottom to 1: their middle, or None."""
    tall = screen.size(canvas)[1]
    mark = screen.colour("mark")
    column = [row[0] for row in screen.pixels(canvas, 2, 0, 1, tall)]
    rows = [y for y, pixel in enumerate(column) if pixel[3] > 100
            and all(abs(a - b) < 60 for a, b in zip(pixel, mark, strict=False))]  # fmt: skip
    return None if not rows else 1 - (sum(rows) / len(rows) + 0.5) / tall


@pytest.mark.parametrize("part", [0.5, 0.9, 1.1, 1.2])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_limit_in_or_near_the_range_is_a_line_with_its_bytes(browser, tmp_path, part, scheme):
    size = int(packed().arena_bytes * part)
    screen = show(browser, tmp_path, size, scheme)
    _, _, low, high = screen.view()
    assert high == max(packed().arena_bytes, size)
    ((text, _),) = label(screen, "marks")
    figure, unit = text.removeprefix("budget ").split()
    scale = 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)
    assert float(figure) * scale == pytest.approx(size, rel=0.01)
    assert line_height(screen, "marks") == pytest.approx((size - low) / (high - low), abs=0.01)
    assert len(label(screen, "live-marks")) == 1
    top = max(packed().live_bytes, size) * 1.08
    assert line_height(screen, "live-marks") == pytest.approx(size / top, abs=0.02)
    screen.page.close()
    assert screen.complaints == []


def test_a_limit_far_beyond_the_range_is_not_drawn_and_leaves_the_axes(browser, tmp_path):
    screen = show(browser, tmp_path, packed().arena_bytes * 4)
    assert screen.view()[3] == packed().arena_bytes
    for canvas in ("marks", "live-marks"):
        assert label(screen, canvas) == []
        assert line_height(screen, canvas) is None
    screen.page.close()


def test_a_limit_outside_of_what_is_zoomed_to_is_not_drawn(browser, tmp_path):
    screen = show(browser, tmp_path, packed().arena_bytes)
    assert len(label(screen, "marks")) == 1
    screen.press("+", "+", "ArrowDown", "ArrowDown", "ArrowDown")
    assert label(screen, "marks") == []
    assert len(label(screen, "live-marks")) == 1
    screen.page.close()
