"""Host memory on the page: a second map, and rows of copies and stalls beside the nodes."""

import pytest
from view.networks import with_copies, without_copies

from graphc.byte_sizes import format_bytes
from graphc.ir.host_copies import copied_values, is_fetched, original
from graphc.plans.timeline import timeline

pytestmark = pytest.mark.browser

ROWS = ("out-copies", "in-copies", "stalls")


def edges():
    found = [0.0]
    for seconds in timeline(with_copies()).seconds:
        found.append(found[-1] + seconds)
    return found


def arrival_of(copy):
    begun = with_copies().graph.nodes[copy.node].output
    return next(n for n in with_copies().graph.uses[begun])


def expected(row, axis):
    """(first, last) of each copy or stall by the model; on nodes, a copy may begin later."""
    times, found = edges(), []
    for copy in timeline(with_copies()).copies:
        end = arrival_of(copy)
        if row == "stalls" and copy.stall:
            found.append((times[end], times[end + 1]) if axis == "seconds" else (end, end + 1))
        elif row == {"host": "out-copies", "device": "in-copies"}[copy.to]:
            found.append((copy.start, copy.end) if axis == "seconds" else (copy.node, end + 1))
    return found


def filled(screen, row):
    """The ranges in which a row is filled, in times of the view's axis."""
    t0, t1, _, _ = screen.view()
    width, height = screen.size(row)
    (line,) = screen.pixels(row, 0, height - 2, width, 1)  # below the texts
    there = {x for x, pixel in enumerate(line) if pixel[3] > 100}
    starts = sorted(x for x in there if x - 1 not in there)
    ends = sorted(x + 1 for x in there if x + 1 not in there)
    scale = (t1 - t0) / width
    return [(t0 + a * scale, t0 + b * scale) for a, b in zip(starts, ends, strict=True)]


@pytest.mark.parametrize("axis", ["node", "seconds"])
@pytest.mark.parametrize("row", ROWS)
def test_rows_show_when_values_are_copied_and_nodes_wait(show, row, axis):
    screen = show({"copies": with_copies()})
    if axis == "seconds":
        screen.press("t")
    t0, t1, _, _ = screen.view()
    pixel = 2.5 * (t1 - t0) / screen.size(row)[0]
    found, wanted = filled(screen, row), expected(row, axis)
    assert len(wanted) > 2
    assert len(found) == len(wanted)
    for (first, last), (begin, end) in zip(found, wanted, strict=True):
        if axis == "seconds" or row == "stalls":
            assert first == pytest.approx(begin, abs=pixel)
            assert last == pytest.approx(end, abs=pixel)
        assert begin - pixel <= first < last <= end + pixel


def place(screen, time, buffer):
    """CSS pixels of the middle of a buffer on the host, while all of its memory is shown."""
    plan, box = with_copies(), screen.page.locator("#host-map").bounding_box()
    t0, t1, _, _ = screen.view()
    address = buffer.offset - plan.host_start + buffer.bytes / 2
    x = box["x"] + (time - t0) / (t1 - t0) * box["width"]
    return x, box["y"] + (1 - address / plan.host_bytes) * box["height"]


def host_buffers():
    return [buffer for buffer in with_copies().buffers if buffer.kind == "host"]


def middle(buffer):
    return (buffer.lifetime.first + with_copies().lifetime_end(buffer)) / 2


def test_hovering_names_the_value_on_the_host(show):
    plan, screen = with_copies(), show({"copies": with_copies()})
    for buffer in host_buffers():
        screen.page.mouse.move(*place(screen, middle(buffer), buffer))
        value = plan.residents[buffer.index][-1]
        lines = screen.tooltip().splitlines()
        assert lines[0] == f"{plan.graph.names[value]} ({value.node.label})"
        assert f"a copy of {plan.graph.names[original(value)]} on the host" in lines[1]
        last = plan.lifetime_end(buffer) - 1
        assert lines[2].startswith("on the host, ")
        assert lines[2].endswith(f"nodes {buffer.lifetime.first} to {last}")
        figure = float(lines[2].split(", ")[1].split()[0])
        assert figure == pytest.approx(float(format_bytes(buffer.bytes).split()[0]), rel=0.01)
        assert any(line.startswith("to host: nodes ") for line in lines)
        assert any(line.startswith("to device: nodes ") for line in lines)


def test_a_click_selects_the_value_and_links_its_copies(show):
    plan, screen = with_copies(), show({"copies": with_copies()})
    buffer = host_buffers()[0]
    value = plan.residents[buffer.index][-1]
    screen.page.mouse.click(*place(screen, middle(buffer), buffer))
    assert screen.heading().split()[0] == plan.graph.names[value]
    details = screen.details()
    start = buffer.offset - plan.host_start
    assert details["host address"] == f"{start:#x} to {start + buffer.bytes:#x}"
    (out,) = [c for c in timeline(plan).copies if plan.graph.nodes[c.node] is value.node.host_copy]
    assert details["copy to host"].startswith(f"nodes {out.node} to {arrival_of(out)}, ")
    assert ("waits" in details["copy to host"]) == bool(out.stall)
    lists = screen.lists()
    source = original(value)
    name = f"{plan.graph.names[source]} ({source.node.label})"
    assert lists["original on the device: 1"] == [name]
    fetched = [v for v in plan.graph.values if is_fetched(v) and original(v) is source]
    assert len(lists[f"fetched from the host: {len(fetched)}"]) == len(fetched)
    screen.page.get_by_label(f"show {name}", exact=True).first.click()
    assert screen.heading() == name
    assert "address" in screen.details()


@pytest.mark.parametrize("row", ROWS)
def test_a_copy_tells_its_bytes_and_stall_and_leads_to_its_value(show, row):
    plan, screen = with_copies(), show({"copies": with_copies()})
    screen.press("t")
    kinds = {"out-copies": ("host",), "in-copies": ("device",), "stalls": ("host", "device")}[row]
    copies = [copy for copy in timeline(plan).copies if copy.to in kinds]
    copies = [copy for copy in copies if row != "stalls" or copy.stall]
    copy, (first, last) = max(
        zip(copies, expected(row, "seconds"), strict=True), key=lambda pair: pair[1][1] - pair[1][0]
    )
    t0, t1, _, _ = screen.view()
    box = screen.page.locator(f"#{row}").bounding_box()
    x = box["x"] + ((first + last) / 2 - t0) / (t1 - t0) * box["width"]
    screen.page.mouse.move(x, box["y"] + box["height"] / 2)
    lines = screen.tooltip().splitlines()
    source = original(plan.graph.nodes[copy.node].output)
    assert lines[0] == f"{plan.graph.names[source]} ({source.node.label})"
    assert f"to the {copy.to}, nodes {copy.node} to {arrival_of(copy)}, " in lines[1]
    assert f"{(copy.end - copy.start) * 1e6:.1f} µs" in lines[1]
    wait = f"node {arrival_of(copy)} waits {copy.stall * 1e6:.3g}"[:-1]
    assert lines[2].startswith(wait if copy.stall else "no node waits")
    screen.page.mouse.click(x, box["y"] + box["height"] / 2)
    result = plan.graph.nodes[arrival_of(copy)].output
    assert screen.heading().split()[0] == plan.graph.names[result]


def host_range(screen):
    """The shown addresses of host memory, by the URL, after a pause; None if all are shown."""
    screen.page.wait_for_timeout(400)
    given = screen.page.evaluate("new URLSearchParams(location.hash.slice(1)).get('host')")
    return given and [float(each) for each in given.split()]


def test_host_memory_zooms_moves_and_is_stored_in_the_address(show):
    plan, screen = with_copies(), show({"copies": with_copies()})
    whole, buffer = screen.view(), host_buffers()[0]
    assert host_range(screen) is None
    screen.page.mouse.move(*place(screen, middle(buffer), buffer))
    screen.page.keyboard.down("Alt")
    screen.page.mouse.wheel(0, -200)
    screen.page.keyboard.up("Alt")
    assert screen.view() == whole  # addresses of the arena, and times, stay
    low, high = host_range(screen)
    address = buffer.offset - plan.host_start + buffer.bytes / 2
    assert low <= address <= high < low + plan.host_bytes
    screen.page.reload()
    screen.page.wait_for_selector("#map[data-draws]")
    assert host_range(screen) == [low, high]
    screen.press("0")
    assert host_range(screen) is None
    screen.page.focus("#host-map")
    screen.press("+", "ArrowUp")
    assert screen.view() == whole
    low, high = host_range(screen)
    assert high == pytest.approx(plan.host_bytes)
    assert high - low == pytest.approx(plan.host_bytes / 1.4)
    box = screen.page.locator("#host-map").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    screen.page.mouse.move(x, y)
    screen.page.mouse.down()
    screen.page.mouse.move(x, y - 20)
    screen.page.mouse.up()
    moved = (high - low) * 20 / box["height"]
    assert host_range(screen) == pytest.approx([low - moved, high - moved], rel=1e-3)
    screen.press("-", "-")
    assert host_range(screen) is None


def test_a_search_shows_the_value_on_its_own_map(show):
    plan, screen = with_copies(), show({"copies": with_copies()})
    arena = screen.view()[2:]
    for source in copied_values(plan.graph)[:2]:
        (value,) = [
            v for v in plan.graph.values
            if v.on_host and v.node.op.awaits and original(v) is source
        ]  # fmt: skip
        screen.page.fill("#search", plan.graph.names[value])
        assert screen.heading().split()[0] == plan.graph.names[value]
        assert screen.view()[2:] == arena
        width, height = screen.size("host-marks")
        rows = screen.pixels("host-marks", 0, 0, width, height)
        assert any(pixel[3] for row in rows for pixel in row)


def test_the_arena_and_its_curve_show_nothing_on_the_host(show):
    """The lists at the peak and the curve are those of the arena; the kinds tell both."""
    plan, screen = with_copies(), show({"copies": with_copies()})
    host = screen.colour("host")
    for canvas in ("map", "live"):
        width, height = screen.size(canvas)
        pixels = {p[:3] for row in screen.pixels(canvas, 0, 0, width, height) for p in row if p[3]}
        assert host not in pixels
    there = {plan.graph.names[v] for v in plan.graph.values if v.on_host}
    rows = screen.page.locator("#moment li").all_inner_texts()
    assert rows
    assert not {row.split()[0] for row in rows} & there
    kind = screen.page.locator("#kinds label", has_text="on the host").inner_text()
    assert kind.split()[-2:] != ["0", "B"]


def test_hiding_the_kind_hides_the_buffers(show):
    screen = show({"copies": with_copies()})
    width, height = screen.size("host-map")

    def is_empty():
        screen.view()
        return not any(p[3] for row in screen.pixels("host-map", 0, 0, width, height) for p in row)

    assert not is_empty()
    screen.page.locator("#kinds input[name=host]").uncheck()
    assert is_empty()


def test_a_tab_without_copies_has_no_map_of_host_memory(show):
    screen = show({"copies": with_copies(), "none": without_copies()})
    parts = [screen.page.locator(f"#{name}") for name in ("host-plot", "copy-lanes")]
    assert all(part.is_visible() for part in parts)
    fetched = next(v for v in with_copies().graph.values if is_fetched(v))
    screen.choose(with_copies(), fetched)
    screen.page.focus("#map")
    screen.press("2")
    assert not any(part.is_visible() for part in parts)
    names = without_copies().graph.names
    alike = [v for v in names if v.node and v.node.label == original(fetched).node.label]
    assert screen.heading().split()[0] in {names[value] for value in alike}
    screen.press("1")
    assert all(part.is_visible() for part in parts)
    screen.press("a")
    assert "host memory" in screen.page.locator("#all button").first.inner_text()
