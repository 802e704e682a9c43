"""Axes, the curve and the peak, by pixels and by the texts that are written on canvases."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest
from view.networks import planned
from view.replay import live_of_kind, replayed
from view.screen import NAMES, large, strategy_plans, variants, written_last

from graphc.plans.cost_model import CostModel

pytestmark = pytest.mark.browser

KINDS = ("state", "input", "feature map", "gradient", "mirror", "workspace")
UNITS = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB"))}
SECONDS = {"s": Fraction(1), "ms": Fraction(1, 10**3), "µs": Fraction(1, 10**6)}
MARGIN = 1.08
"""What the curve's axis has above the highest peak."""


def number(text, units):
    """An amount with its unit, exactly as it is written."""
    figure, _, unit = text.partition(" ")
    return Fraction(figure) * (units[unit] if unit else 1)


def check_bytes(screen, canvas, low, high):
    """Labels of bytes stand where their bytes are, evenly, and fill the axis."""
    _, tall = screen.size(canvas)
    *labels, (title, _, _) = screen.texts(canvas)
    assert title == {"addresses": "arena address", "sizes": "live"}[canvas]
    at = [number(text, UNITS) for text, _, _ in labels]
    assert len(at) >= 2
    assert len({after - before for before, after in pairwise(at)}) <= 1
    for value, (_, _, y) in zip(at, labels, strict=True):
        assert y == pytest.approx(tall * (1 - (float(value) - low) / (high - low)), abs=0.6)


def check_times(screen, low, high, units, title):
    wide, _ = screen.size("times")
    *labels, (told, _, _) = screen.texts("times")
    assert told == title
    at = [number(text, units) for text, _, _ in labels]
    assert len(at) >= 2
    assert len({after - before for before, after in pairwise(at)}) == 1
    for value, (_, x, _) in zip(at, labels, strict=True):
        assert x == pytest.approx(wide * (float(value) - low) / (high - low), abs=0.6)


@pytest.mark.parametrize("scale", [1, 2])
def test_labels_of_axes_stand_where_their_values_are(show, scale):
    screen = show(strategy_plans(), device_scale_factor=scale)
    most = MARGIN * max(plan.live_bytes for plan in strategy_plans().values())
    for keys in [("3",), ("ArrowUp",), *[("+",)] * 17, ("ArrowUp",), ("ArrowRight",)]:
        t0, t1, a0, a1 = screen.press(*keys)
        check_bytes(screen, "addresses", a0, a1)
        check_bytes(screen, "sizes", 0, most)
        check_times(screen, t0, t1, {}, "node")
    screen.press("f")
    check_bytes(screen, "sizes", 0, MARGIN * strategy_plans()["packed"].live_bytes)
    title = f"seconds: {CostModel(strategy_plans()['packed'].device)}"
    for keys in [("0", "t"), ("+", "+"), ("ArrowRight",), ("+", "+")]:
        t0, t1, _, _ = screen.press(*keys)
        check_times(screen, t0, t1, SECONDS, title)


def test_the_peak_is_marked_where_it_is(screen):
    wide, tall = screen.size("live-marks")
    mark = screen.colour("mark")
    most = max(plan.live_bytes for plan in strategy_plans().values())
    looked_at = 0
    for keys, is_fitted in (((), False), (("+", "ArrowLeft"), False), (("f",), True)):
        for tab, plan in enumerate(strategy_plans().values(), 1):
            screen.press("0", str(tab), "m", "0")  # `m` moves to the largest buffer
            t0, t1, _, _ = screen.press(*keys)
            x = (plan.peak_step + 0.5 - t0) / (t1 - t0) * wide
            top = tall * (1 - plan.live_bytes / (plan.live_bytes if is_fitted else most) / MARGIN)
            if not 20 < x < wide - 20:
                continue
            looked_at += 1
            left = round(x) - 20
            rows = screen.pixels("live-marks", left, 0, 40, tall)
            marked = [[near(pixel, mark) for pixel in row] for row in rows]
            # The dashes are below the dot; beside it stands the text.
            dashes = [
                at for row in marked[int(top) + 10 :] for at, is_on in enumerate(row) if is_on
            ]
            assert abs(left + sum(dashes) / len(dashes) + 0.5 - x) <= 1
            dot = [at for at, row in enumerate(marked[: int(top) + 8]) if row[int(x) - left]]
            assert abs(dot[0] - (top - 4)) <= 1.5
            (told,) = [text for text, _, _ in screen.texts("live-marks")]
            assert told.endswith(f"at node {plan.peak_step}")
    assert looked_at >= 10


def near(pixel, colour, doubt=40):
    *found, opaque = pixel
    return opaque > 128 and all(abs(a - b) <= doubt for a, b in zip(found, colour, strict=True))


def test_the_curve_is_as_high_as_what_is_live_and_stacked_by_kind(show):
    plan = planned("wide mlp", recompute="sublinear")
    screen = show({"other": planned("wide mlp"), "sublinear": plan})
    screen.press("2")
    wide, tall = screen.size("live")
    colours = {kind: screen.colour(kind.replace(" ", "-")) for kind in KINDS}
    most = max(plan.live_bytes, planned("wide mlp").live_bytes)
    _, steps, _, _ = screen.view()
    seen, held = set(), replayed(plan)
    for is_fitted in (False, True):
        if is_fitted:
            _, steps, _, _ = screen.press("f")
            most = plan.live_bytes
        for step in range(len(plan.graph.nodes)):
            column = [
                row[0]
                for row in screen.pixels("live", int((step + 0.5) / steps * wide), 0, 1, tall)
            ]
            bottom = 0
            for kind in KINDS:
                size = live_of_kind(plan, kind, step, held)
                top = bottom + size / most / MARGIN * tall
                # A pixel is cut by an edge, and the line of the total lies on the highest.
                for y in range(int(tall - top) + 3, int(tall - bottom) - 1):
                    assert near(column[y], colours[kind], 3)
                    seen.add(kind)
                bottom = top
            assert not any(opaque for *_, opaque in column[: int(tall - bottom) - 2])
            assert column[min(tall - 1, round(tall - bottom))][3] > 0
    assert seen >= {"input", "feature map", "gradient", "mirror"}


def test_a_column_of_several_nodes_shows_the_highest(show):
    plan = planned("lstm", recompute="recursive")
    screen = show({"recursive": plan}, viewport={"width": 260, "height": 900})
    wide, tall = screen.size("live")
    nodes = len(plan.graph.nodes)
    assert nodes > 2.5 * wide
    rows = screen.pixels("live", 0, 0, wide, tall)
    for x in range(wide):
        first, end = math.ceil(x / wide * nodes), math.floor((x + 1) / wide * nodes)
        highest = max(plan.live_profile[first:end]) / plan.live_bytes / MARGIN * tall
        assert all(rows[y][x][3] > 128 for y in range(math.ceil(tall - highest) + 1, tall))


def test_a_kind_that_is_not_shown_leaves_the_curve(show):
    plan = planned("wide mlp")
    screen = show({"packed": plan})
    wide, tall = screen.size("live")
    x = int((plan.peak_step + 0.5) / len(plan.graph.nodes) * wide)
    for kind in ("feature map", "gradient"):
        colour = screen.colour(kind.replace(" ", "-"))
        column = [row[0] for row in screen.pixels("live", x, 0, 1, tall)]
        size = live_of_kind(plan, kind, plan.peak_step)
        high = size / plan.live_bytes / MARGIN * tall
        assert sum(near(pixel, colour, 3) for pixel in column) == pytest.approx(high, abs=3)
        screen.page.uncheck(f'#kinds input[name="{kind}"]')
        screen.view()
        column = [row[0] for row in screen.pixels("live", x, 0, 1, tall)]
        assert not any(near(pixel, colour, 3) for pixel in column)
        screen.page.check(f'#kinds input[name="{kind}"]')
        screen.view()


def test_beyond_the_end_of_a_plan_is_nothing(screen):
    steps = {name: len(plan.graph.nodes) for name, plan in strategy_plans().items()}
    shortest = min(steps, key=steps.__getitem__)
    plan = strategy_plans()[shortest]
    screen.press(str(NAMES.index(shortest) + 1))
    state = max((b for b in plan.buffers if b.kind == "state"), key=lambda b: b.bytes)
    address = state.offset + state.bytes / 2
    assert screen.hover(steps[shortest] - 0.5, address) is not None
    for beyond in (0.5, 1.5, max(steps.values()) - steps[shortest] - 0.5):
        assert screen.hover(steps[shortest] + beyond, address) is None
    x, _ = screen.place(steps[shortest] + 1.5, address)
    curve = screen.page.locator("#curve").bounding_box()
    screen.page.mouse.move(x, curve["y"] + curve["height"] / 2)
    assert screen.tooltip() is None


def test_a_dense_screen(show):
    """Two pixels of the device for each of the page: the pointer counts in those of the page."""
    screen, plan = show(strategy_plans(), device_scale_factor=2), strategy_plans()["sublinear"]
    screen.press("5")
    assert screen.size("map") == [round(2 * screen.box[side]) for side in ("width", "height")]
    found = list(large(plan, screen))
    assert len(found) >= 8
    _, t1, _, a1 = screen.view()
    wide, tall = screen.size("map")
    for buffer, step in found:
        address = buffer.offset + buffer.bytes / 2
        assert screen.hover(step + 0.5, address).split()[0] == written_last(plan, buffer, step)
        left = int(buffer.lifetime.first / t1 * wide) + 3
        y = int(tall * (1 - (buffer.offset + 0.85 * buffer.bytes) / a1))
        ((pixel,),) = screen.pixels("map", left, y)
        wanted = screen.colour(buffer.kind.replace(" ", "-"))
        assert all(abs(a - b) <= 0.1 * b + 2 for a, b in zip(pixel[:3], wanted, strict=True))


def test_turning_time_keeps_what_is_seen(screen):
    plan = strategy_plans()["packed"]
    costs = CostModel(plan.device)
    edges = [0.0]
    for node in plan.graph.nodes:
        edges.append(edges[-1] + float(f"{costs.seconds(node):.4g}"))
    # Halves of the plan, some nodes, less than one, the whole, and the axes of this plan.
    for keys in [("+", "+"), ("+",) * 9, ("ArrowRight",), ("0",), ("f",), ("0", "t", *"+" * 18)]:
        before = screen.press("3", *keys)
        is_seconds = screen.page.locator("#time").inner_text() == "show nodes"
        for turn in range(1, 21):
            after = screen.press("t")
            if turn % 2 == 0:
                assert after == pytest.approx(before, rel=1e-9)
            elif not is_seconds and keys != ("0",):
                for node, time in zip(before[:2], after[:2], strict=True):
                    step = min(int(node), len(plan.graph.nodes) - 1)
                    wanted = edges[step] + (node - step) * (edges[step + 1] - edges[step])
                    if node <= len(plan.graph.nodes):
                        assert time == pytest.approx(wanted, rel=1e-6, abs=edges[-1] * 1e-9)
            assert after[2:] == before[2:]
        if is_seconds:
            screen.press("t", "0")


def test_seconds_of_another_device_have_their_own_axis(show):
    plans = {name: variants()[name] for name in ("sharing", "recursive", "cuda")}
    screen = show(plans)
    ends = {}
    for name, plan in plans.items():
        costs = CostModel(plan.device)
        ends[name] = sum(float(f"{costs.seconds(node):.4g}") for node in plan.graph.nodes)
    on_cpu = max(ends["sharing"], ends["recursive"])
    assert ends["cuda"] < on_cpu / 10
    screen.press("t")
    for tab, end in (("1", on_cpu), ("2", on_cpu), ("3", ends["cuda"]), ("1", on_cpu)):
        assert screen.press(tab)[:2] == pytest.approx([0, end])
    screen.press("a")
    share = "(c => { const p = c.getContext('2d').getImageData(0, c.height - 3, c.width, 1).data;"
    share += " return p.filter((v, i) => i % 4 === 3 && v > 0).length / c.width; })"
    filled = screen.page.evaluate(f"[...document.querySelectorAll('#all canvas')].map({share})")
    wanted = [ends["sharing"] / on_cpu, ends["recursive"] / on_cpu, 1]
    assert filled == pytest.approx(wanted, abs=0.02)


def test_turning_time_back_restores_nodes_that_take_no_time(show):
    plan = variants()["sharing"]
    costs = CostModel(plan.device)
    quick = [step for step, node in enumerate(plan.graph.nodes) if not costs.seconds(node)]
    assert quick
    screen = show({"sharing": plan})
    screen.press(*["+"] * 12, *["ArrowLeft"] * 99)
    starts = 0
    for _ in range(100):
        before = screen.press("ArrowRight")
        if int(before[0]) in quick and before[0] % 1:
            screen.press("t")
            assert screen.press("t") == before
            starts += 1
    assert starts
