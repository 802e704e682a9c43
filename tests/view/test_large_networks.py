"""Pages and pictures of large networks: they read well, and docs/pictures shows them.

`pytest -m browser --update-golden` writes docs/pictures anew.
"""

import functools
import io
from pathlib import Path

import pytest
from view.networks import STRATEGIES
from view.screen import NAMES, SIZE, Screen

import graphc as g
from graphc.models import gpt2, lstm, resnet
from graphc.view.page import page

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PICTURES = Path(__file__).parents[2] / "docs" / "pictures"
COLOURS = 128
"""Of a kept picture: no eye sees that there are not more, and it is a third of the size."""

NETWORKS = {
    "resnet50": ("ResNet-50, batch 32", resnet),
    "lstm64": ("LSTM, 64 steps", lstm),
    "gpt2": ("GPT-2 small, batch 4", functools.partial(gpt2, attention="composed")),
}


@functools.cache
def planned(network):
    _, make = NETWORKS[network]
    return {
        name: g.plan(make(), optimizer=g.optim.SGD(), **options)
        for name, options in STRATEGIES.items()
    }


@pytest.fixture
def keep(request):
    """Compare a picture's size with that in docs/pictures; `--update-golden` writes it."""
    image = pytest.importorskip("PIL.Image")

    def check(png, name):
        picture = image.open(io.BytesIO(png)).convert("RGB")
        if request.config.getoption("--update-golden"):
            few = picture.quantize(COLOURS, image.Quantize.MAXCOVERAGE, dither=image.Dither.NONE)
            few.save(PICTURES / name, optimize=True)
        with image.open(PICTURES / name) as kept:
            assert kept.size == picture.size

    return check


UNREADABLE = """() => {
  const luminance = colour => {
    const parts = colour.match(/[\\d.]+/g).slice(0, 3).map(Number).map(part => part / 255)
      .map(part => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
  };
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = getComputedStyle(each).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const element of document.body.querySelectorAll("*")) {
    const texts = [...element.childNodes].filter(each => each.nodeType === 3 && each.data.trim());
    if (!texts.length || !element.checkVisibility()) continue;
    const lights = [getComputedStyle(element).color, behind(element)].map(luminance);
    const contrast = (Math.max(...lights) + 0.05) / (Math.min(...lights) + 0.05);
    if (contrast < 4.5) found.push([texts[0].data, contrast]);
  }
  return found;
}"""
"""Texts whose contrast is below what WCAG asks for at level AA."""

CUT_OFF = """() => [...document.querySelectorAll("header *, aside :is(dd, dt, h2, h3)")]
  .filter(each => each.checkVisibility() && each.scrollWidth > each.clientWidth + 1
    && getComputedStyle(each).display !== "inline")
  .map(each => each.textContent)"""


def check_reads_well(screen):
    evaluate = screen.page.evaluate
    assert evaluate(UNREADABLE) == []
    assert evaluate(CUT_OFF) == []
    root = "document.documentElement"
    assert evaluate(f"[{root}.scrollWidth, {root}.scrollHeight]") == list(SIZE.values())
    assert screen.page.locator("header").bounding_box()["height"] < 50


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("network", NETWORKS)
def test_a_page(browser, tmp_path, keep, network, scheme):
    path = tmp_path / "plan.html"
    path.write_text(page(planned(network), NETWORKS[network][0]))
    screen = Screen(browser, path, scheme)
    screen.press("5", "m", "f")
    _, t1, _, a1 = screen.view()
    told = screen.hover(t1 * 0.3, a1 * 0.2)
    assert told is not None
    check_reads_well(screen)
    keep(screen.page.screenshot(), f"page-{network}-{scheme}.png")
    screen.press("a")
    check_reads_well(screen)
    keep(screen.page.screenshot(), f"all-{network}-{scheme}.png")
    screen.page.close()
    assert screen.complaints == []


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_picture(keep, network, name):
    picture = pytest.importorskip("graphc.view.picture", exc_type=g.GraphcError)
    title = f"{NETWORKS[network][0]}: {name}"
    keep(picture.plan_picture(planned(network)[name], title), f"plan-{network}-{name}.png")


def test_bars_and_a_frontier(keep, tmp_path):
    pytest.importorskip("matplotlib")
    from graphc.cli import main

    bars, frontier = tmp_path / "compare.png", tmp_path / "frontier.png"
    assert main(["compare", "resnet", "-o", str(bars)]) == 0
    assert main(["plan", "resnet", "--frontier", "-o", str(frontier)]) == 0
    keep(bars.read_bytes(), "compare-resnet50.png")
    keep(frontier.read_bytes(), "frontier-resnet50.png")
