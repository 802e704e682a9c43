"""How long a page of a plan takes to write, to open, and to draw after one step of zooming.

Wheel steps at 20 places of the map, in and out, in headless Chromium: how long drawing takes, and
how long it is from the event to its end. Needs `make browser` once.
Run: python benchmarks/page_zoom.py
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright
from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.models import resnet
from graphc.plans.memory_plan import MemoryPlan
from graphc.view.page import page

NETWORKS: dict[str, Callable[[], MemoryPlan]] = {
    "ResNet-50, packed": lambda: _planned(resnet()),
    "ResNet-1001, packed": lambda: _planned(resnet(1001)),
    "ResNet-1901, none": lambda: _planned(resnet(units=(6, 80, 540, 6)), allocate="none"),
}

FRAME = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def _planned(loss: graphc.Value, **options: Any) -> MemoryPlan:
    return graphc.plan(loss, optimizer=graphc.optim.SGD(), **options)


def measure(name: str, screen: Page, folder: Path) -> dict[str, Any]:
    plan = NETWORKS[name]()
    started = time.perf_counter()
    text = page({"plan": plan}, name)
    written = time.perf_counter()
    path = folder / "plan.html"
    path.write_text(text)
    opening = time.perf_counter()
    screen.goto(path.as_uri())
    screen.wait_for_selector("#map[data-draws]")
    opened = time.perf_counter()
    drawn, since_wheel = _zoom(screen)
    return {
        "network": name,
        "buffers": len(plan.buffers),
        "page MB": len(text) / 1e6,
        "write seconds": written - started,
        "open seconds": opened - opening,
        "median zoom ms": statistics.median(drawn),
        "95th percentile zoom ms": statistics.quantiles(drawn, n=20)[-1],
        "longest zoom ms": max(drawn),
        "longest since wheel ms": max(since_wheel),
    }


WATCH = """() => {
  const map = document.getElementById("map");
  let turned = 0;
  map.addEventListener("wheel", () => { turned = performance.now(); }, { capture: true });
  new MutationObserver(() => { window.fromWheel = performance.now() - turned; })
    .observe(map, { attributeFilter: ["data-draws"] });
}"""
"""Keeps the time from a turn of the wheel to the end of drawing, which waits for a frame."""


def _zoom(screen: Page) -> tuple[list[float], list[float]]:
    """Milliseconds of drawing after each step, as the page takes them, and since the wheel."""
    box = screen.locator("#map").bounding_box()
    assert box is not None
    screen.evaluate(WATCH)
    drawn, since_wheel = [], []
    for place in range(20):
        across, down = (0.07 + 0.37 * place) % 1, (0.11 + 0.61 * place) % 1
        screen.mouse.move(box["x"] + across * box["width"], box["y"] + down * box["height"])
        for turn in (-120, -120, 120, 120):
            screen.mouse.wheel(0, turn)
            screen.evaluate(FRAME)
            drawn.append(
                float(screen.evaluate("document.getElementById('map').dataset.milliseconds"))
            )
            since_wheel.append(float(screen.evaluate("window.fromWheel")))
    return drawn, since_wheel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    output_argument(parser, "page_zoom.json")
    options = parser.parse_args()
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as driver, tempfile.TemporaryDirectory() as folder:
        browser = driver.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        screen = browser.new_page(viewport={"width": 1440, "height": 900})
        rows = [measure(name, screen, Path(folder)) for name in NETWORKS]
        version = browser.version
        browser.close()
    print_table(rows)
    found = {**circumstances(["graphc", "playwright"]), "chromium": version, "rows": rows}
    write_json(options.output, found)


if __name__ == "__main__":
    main()
