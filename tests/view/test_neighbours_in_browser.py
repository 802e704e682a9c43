"""The small graph of neighbours, and the tree of scopes, against the plan."""

import pytest
from view.screen import called, strategy_plans, variants

from graphc.byte_sizes import format_bytes
from graphc.view.scopes import scopes_at

pytestmark = pytest.mark.browser

MOST = 4


def operands(value):
    """What computes a value, then what is given."""
    found = dict.fromkeys(value.node.inputs if value.node else ())
    return [v for v in found if v.node] + [v for v in found if not v.node]


def readers(plan, value):
    results = value.node.outputs if value.node else (value,)
    steps = sorted({step for v in results for step in plan.graph.uses[v]})
    return [plan.graph.nodes[step].outputs[0] for step in steps]


def rows(plan, value):
    """Five sets of names: two levels of operands, the value, two of readers."""
    above, below = operands(value), readers(plan, value)
    levels = ([w for v in above for w in operands(v)], above, [value], below,
              [w for v in below for w in readers(plan, v)])  # fmt: skip
    return [{called(plan, v) for v in level} for level in levels]


def shown(screen):
    """Five rows of names that the graph has, and how many more it tells of."""
    boxes = screen.page.evaluate(
        "[...document.querySelectorAll('.neighbours [role=button]')].map(box => "
        "[box.transform.baseVal[0].matrix.f, box.querySelector('title').textContent])"
    )
    pitch = 54
    found = [set() for _ in range(5)]
    for top, name in boxes:
        found[round(top / pitch)].add(name)
    more = screen.page.locator(".neighbours > text").all_text_contents()
    return found, sum(int(text.split()[0]) for text in more)


@pytest.mark.parametrize("name", ["packed", "cheap"])
def test_neighbours_are_operands_and_readers_of_two_levels(screen, name):
    plan = strategy_plans()[name]
    screen.press(str(list(strategy_plans()).index(name) + 1))
    values = list(plan.graph.values)
    for value in [*values[:4], *values[:: len(values) // 12], values[-1]]:
        screen.choose(plan, value)
        screen.page.locator("#map").focus()
        found, more = shown(screen)
        wanted = rows(plan, value)
        kept = [len(row) if len(row) <= MOST else MOST - 1 for row in wanted]
        assert [len(row) for row in found] == kept
        assert all(few <= row for few, row in zip(found, wanted, strict=True))
        assert more == sum(map(len, wanted)) - sum(kept)


def test_lines_join_what_is_read_to_what_reads_it(show):
    plan = variants()["sharing"]
    screen = show({"sharing": plan})
    value = next(
        v for v in plan.graph.values
        if v.node and v.node.inputs and all(len(row) <= MOST for row in rows(plan, v))
        and len(readers(plan, v)) >= 2
    )  # fmt: skip
    screen.choose(plan, value)
    pairs = screen.page.evaluate(
        "() => {"
        "const boxes = [...document.querySelectorAll('.neighbours [role=button]')].map(b => ({"
        "x: b.transform.baseVal[0].matrix.e + 35, y: b.transform.baseVal[0].matrix.f, "
        "name: b.querySelector('title').textContent }));"
        "const at = (x, y) => boxes.find(b => Math.abs(b.x - x) < 1 && Math.abs(b.y - y) < 1).name;"
        "return [...document.querySelectorAll('.neighbours line')].map(l => "
        "['x1', 'y1', 'x2', 'y2'].map(n => Number(l.getAttribute(n))))"
        ".map(([x1, y1, x2, y2]) => [at(x1, y1 - 32), at(x2, y2)]); }"
    )
    above, below = operands(value), readers(plan, value)
    wanted = {(v, value) for v in above} | {(value, v) for v in below}
    wanted |= {(w, v) for v in above for w in operands(v)}
    wanted |= {(v, w) for v in below for w in readers(plan, v)}
    assert {tuple(pair) for pair in pairs} == {
        (called(plan, a), called(plan, b)) for a, b in wanted
    }


def test_the_graph_can_be_walked_by_pointer_and_by_keys(screen):
    plan = strategy_plans()["packed"]
    screen.press("3")
    value = [v for v in plan.graph.values if v.node and v.node.op.name == "relu"][4]
    screen.choose(plan, value)
    (operand,) = operands(value)
    name = f"show {called(plan, operand)}"
    screen.page.locator(".neighbours").get_by_role("button", name=name, exact=True).click()
    assert screen.heading() == called(plan, operand)
    current = "document.activeElement.getAttribute('aria-current')"
    assert screen.page.evaluate(current) == "true"
    at = operand
    for key in ("ArrowUp", "ArrowDown", "ArrowDown", "ArrowUp", "ArrowUp"):
        at = operands(at)[0] if key == "ArrowUp" else readers(plan, at)[0]
        screen.press(key)
        assert screen.heading() == called(plan, at)
        assert screen.page.evaluate(current) == "true"


def test_the_tree_of_scopes_opens_and_has_the_bytes_of_each_layer(screen):
    plan = strategy_plans()["cheap"]
    screen.press("4")
    for step in (plan.peak_step, plan.peak_step + 1):
        title = screen.page.locator("#scopes-title").inner_text().lower()
        assert title == f"scopes: live at node {step}"
        while screen.page.locator("#scopes details:not([open]) > summary").count():
            screen.page.locator("#scopes details:not([open]) > summary").first.click()
            screen.view()
        told = screen.page.evaluate(
            "[...document.querySelectorAll('#scopes summary, #scopes div')]"
            ".map(row => [...row.children].map(cell => cell.textContent))"
        )
        assert told == list(lines(scopes_at(plan, step), True))
        screen.press(".")


def lines(scope, is_root=False):
    """Rows of the tree: name and bytes as the page writes them."""
    for inner in scope.inner:
        yield [inner.name, short(inner.bytes)]
        if inner.inner:
            yield from lines(inner)
    if scope.own_bytes:
        yield ["of no scope" if is_root else "this scope itself", short(scope.own_bytes)]


def short(size):
    """A size as the page writes it: one digit less from ten up, none where it is whole."""
    unit = format_bytes(size).split()[1]
    scale = 1024 ** ("B", "KiB", "MiB", "GiB").index(unit)
    number = size / scale
    if unit == "B" or number == int(number):
        return f"{int(number)} {unit}"
    return f"{number:.{2 if number < 10 else 1}f} {unit}"
