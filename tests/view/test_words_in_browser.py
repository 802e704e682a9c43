"""What the page says of values and nodes, against the plan: ways, lifetimes, bytes of kinds."""

import pytest
from view.replay import live_of_kind, replayed
from view.screen import VARIANTS, called, large, strategy_plans, variants

import graphc as g
from graphc.ir.graph import State
from graphc.plans.names import kind_label

pytestmark = pytest.mark.browser

KINDS = ("state", "input", "feature map", "gradient", "mirror", "workspace")
EACH = 3
"""Values of a plan that are looked at for each way to get bytes."""

WAYS = {
    "new": "in bytes that no value used before",
    "reuse": "in bytes whose earlier values are dead",
    "over": "in place of {other}, whose last use is this node",
    "view": "a view of {other}, without bytes of its own",
    "part": "computed in place as a part of {other}",
}


def why(plan, value):
    """The words of a placement."""
    place, names = plan.placements[value], plan.graph.names
    if place.how == "state":
        if place.over is None:
            return "in the region of states"
        return f"at the address of the state {names[place.over]}"
    told = WAYS[place.how].format(other=None if place.over is None else names[place.over])
    if value.node is None or value.node.phase != "mirror":
        return told
    copied = names[value.node.copy_of.outputs[value.index]]
    return f"recomputed, a copy of {copied}; {told}"


def shared(plan, value):
    """All values that read some of a value's bytes under another name, and itself."""
    found, new = {value}, {value}
    while new:
        wholes = {plan.placements[v].over for v in new if plan.placements[v].how == "part"}
        views = {v for v, p in plan.placements.items() if p.how == "view" and p.over in new}
        new = (wholes | views) - found
        found |= new
    return found


def last_step(plan, value):
    """The last node for which one value is there, by its own readers."""
    is_kept = isinstance(value, State) or value in plan.graph.outputs.values()
    if is_kept or plan.placements[value].how == "state":
        return len(plan.graph.nodes) - 1
    reading = [step for step, node in enumerate(plan.graph.nodes) if value in node.inputs]
    return max([*reading, 0 if value.node is None else plan.graph.position[value.node]])


def looked_at(plan):
    """Some values of each way, and those that are recomputed beside those that are not."""
    ways = {}
    for value, place in plan.placements.items():
        is_copy = value.node is not None and value.node.phase == "mirror"
        ways.setdefault((place.how, place.over is None, is_copy), []).append(value)
    for values in ways.values():
        # From both ends: values of the forward pass live until after its end.
        yield from dict.fromkeys(values[:EACH] + values[-EACH:])


@pytest.fixture
def panel(show):
    return show(variants())


def test_all_ways_to_get_bytes_are_told(panel):
    told = set()
    for number, plan in enumerate(variants().values(), 1):
        panel.press("Escape", str(number))
        for value in looked_at(plan):
            panel.choose(plan, value)
            assert panel.details()["placement"] == why(plan, value)
            told.add(plan.placements[value].how)
            told.add(value.node.phase if value.node else "source")
        panel.page.locator("#map").focus()
    assert told >= {*WAYS, "state", "mirror", "source"}


def test_bytes_live_until_views_and_wholes_are_read(panel):
    longer = set()
    for number, plan in enumerate(variants().values(), 1):
        panel.press("Escape", str(number))
        for value in looked_at(plan):
            until = max(last_step(plan, each) for each in shared(plan, value))
            born = 0 if value.node is None else plan.graph.position[value.node]
            panel.choose(plan, value)
            assert panel.details()["live range"] == f"nodes {born} to {until}"
            if until > last_step(plan, value):
                longer.add("part" if plan.placements[value].how == "part" else "viewed")
        panel.page.locator("#map").focus()
    assert longer == {"part", "viewed"}


@pytest.mark.parametrize("name", VARIANTS)
def test_buffers_live_as_long_as_their_values(name):
    """What the test above works out for values is what the plan has for buffers."""
    plan = variants()[name]
    for index, values in plan.residents.items():
        last = max(last_step(plan, value) for value in values)
        assert min(plan.buffers[index].lifetime.last, len(plan.graph.nodes)) == last + 1


def test_views_and_wholes_are_one_click_away(panel):
    plan = variants()["recursive"]
    names, position = plan.graph.names, plan.graph.position
    for value in looked_at(plan):
        panel.choose(plan, value)
        lists = panel.lists()
        views = [v for v, p in plan.placements.items() if p.how == "view" and p.over is value]
        told = lists.get(f"views of this value: {len(views)}", [])
        assert told == [f"node {position[v.node]}, {called(plan, v)}" for v in views]
        is_part = plan.placements[value].how == "part"
        assert ("part of: 1" in lists) == is_part
    part = next(v for v, p in plan.placements.items() if p.how == "part")
    whole = plan.placements[part].over
    panel.choose(plan, part)
    panel.page.get_by_role("button", name=f"show {called(plan, whole)}").last.click()
    assert panel.heading().split()[0] == names[whole]


@pytest.mark.parametrize("name", ["recursive", "cuda", "accumulated"])
def test_hover_names_what_is_there(panel, name):
    plan = variants()[name]
    panel.press(str(list(variants()).index(name) + 1))
    found, held = list(large(plan, panel)), replayed(plan)
    assert len(found) >= 8
    for buffer, step in found:
        address = buffer.offset + buffer.bytes // 3 // 4 * 4 + 2
        label = plan.graph.nodes[step].label
        told = panel.hover(step + 0.5, address)
        if buffer.kind == "workspace":
            (node,) = [n for n, b in plan.workspaces.items() if b is buffer]
            wanted = f"workspace of {node.label}"
        else:
            value = written_there(plan, buffer, step, address)
            wanted = called(plan, value)
        assert told.split("\n")[0].strip() == wanted
        assert f"\n{kind_label(held[step, buffer.index][1])}, " in told
        assert told.endswith(f"node {step}: {label}")
        assert "undefined" not in told


def written_there(plan, buffer, step, address):
    """The value written last by a step whose elements hold the byte, element by element."""
    found, latest = None, -2
    for value in plan.residents[buffer.index]:
        place = plan.placements[value]
        born = -1 if value.node is None else plan.graph.position[value.node]
        if place.how == "view" or born > step or born < latest:
            continue
        if holds(value, place.strides, address - plan.address(value)):
            found, latest = value, born
    return found


def holds(value, strides, byte):
    if strides is None:
        return 0 <= byte < value.type.bytes
    starts = {0}
    for extent, stride in zip(value.shape, strides, strict=True):
        starts = {start + number * stride for start in starts for number in range(extent)}
    width = value.type.bytes // len(starts)
    return any(start <= byte < start + width for start in starts)


def test_a_workspace_is_told_by_its_node(screen):
    plan = strategy_plans()["none"]
    node, buffer = max(plan.workspaces.items(), key=lambda entry: entry[1].bytes)
    step = plan.graph.position[node]
    told = screen.hover(step + 0.5, buffer.offset + buffer.bytes / 2)
    assert told.split("\n")[0] == f"workspace of {node.label}"
    screen.page.mouse.click(*screen.place(step + 0.5, buffer.offset + buffer.bytes / 2))
    assert screen.heading() == f"workspace of {node.label}"


def test_a_plan_without_nodes_begins(show):
    screen = show({"only": g.plan(outputs=[g.input("x", (4,))])})
    assert screen.hover(0.5, 8).endswith("node 0: start")
    box = screen.page.locator("#curve").bounding_box()
    screen.page.mouse.move(box["x"] + 9, box["y"] + 9)
    assert screen.tooltip().endswith("node 0: start")


def sizes_of_kinds(screen):
    """Kind → the bytes that its row tells, and half a unit of its last digit."""
    rows = screen.page.locator("#kinds label").all_inner_texts()
    found = {}
    for row in rows:
        kind, figure, unit = row.rsplit("\n", 1)[0], *row.rsplit("\n", 1)[1].split()
        scale = 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)
        digits = len(figure.partition(".")[2])
        found[kind.strip()] = (float(figure) * scale, scale * 0.5 / 10**digits)
    return found


def check_kinds(screen, plan, step):
    title = screen.page.locator("#kinds-title").inner_text().lower()
    assert title == f"kinds: live at node {step}"
    told = sizes_of_kinds(screen)
    assert list(told) == [kind_label(kind) for kind in KINDS]
    for kind, (size, doubt) in zip(KINDS, told.values(), strict=True):
        wanted = live_of_kind(plan, kind, step)
        assert size == pytest.approx(wanted, abs=1.001 * doubt if wanted else 0)


def test_bytes_of_kinds(panel):
    for number, plan in enumerate(variants().values(), 1):
        panel.press(str(number))
        check_kinds(panel, plan, plan.peak_step)
        curve = panel.page.locator("#curve").bounding_box()
        _, t1, _, _ = panel.view()
        for step in (1, len(plan.graph.nodes) // 2, len(plan.graph.nodes) - 1):
            x = curve["x"] + (step + 0.5) / t1 * curve["width"]
            panel.page.mouse.click(x, curve["y"] + 5)
            check_kinds(panel, plan, step)


def test_the_panel_names_its_plan(panel, show):
    title = panel.page.locator("#plan-title")
    for number, name in enumerate(variants(), 1):
        panel.press(str(number))
        assert title.inner_text().lower() == f"plan: {name}"
        panel.press("a")
        assert title.inner_text().lower() == f"plan: {name}"
    alone = show({"alone": variants()["cuda"]})
    assert alone.page.locator("#plan-title").inner_text().lower() == "plan"
