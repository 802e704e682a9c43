"""A page that is open in a browser, and where it must show what."""

import functools

from view.networks import STRATEGIES, planned

import graphc as g

NAMES = tuple(STRATEGIES)
SIZE = {"width": 1440, "height": 900}


@functools.cache
def strategy_plans():
    """Plans of a small network under each strategy, by name."""
    return {name: planned(**options) for name, options in STRATEGIES.items()}


def branches():
    """Concatenations of branches, whose parts are computed in their places, and views of them."""
    x = g.input("x", (64, 256))
    for block in range(3):
        with g.scope(f"block{block}"):
            with g.scope("left"):
                left = g.tanh(g.linear(x, 128))
            with g.scope("right"):
                right = g.relu(g.linear(x, 128))
            x = g.tanh(g.concat([left, right], 1))
    both = g.reshape(g.concat([g.tanh(x), g.exp(x)], 0), (64, 512))
    with g.scope("out"):
        return g.mean(g.linear(both, 4))


VARIANTS = {
    "recursive": {"recompute": "recursive"},
    "cuda": {"device": "cuda", "roofline": "h100"},
    "accumulated": {"accumulate": 2},
    "sharing": {"allocate": "sharing"},
}


@functools.cache
def variants():
    """Plans with parts, views, fused nodes and values that are computed again, by name."""
    plan = functools.partial(g.plan, optimizer=g.optim.Momentum())
    return {name: plan(branches(), **options) for name, options in VARIANTS.items()}


def called(plan, value):
    """A value as the page names it: with the scope and op that it comes from."""
    name = plan.graph.names[value]
    return f"{name} ({value.node.label})" if value.node else name


RECORD = """window.texts = {};
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const at = this.getTransform().transformPoint({ x, y });
  window.texts[this.canvas.id].push([text, at.x, at.y]);
  return draw.call(this, text, x, y);
};
const clear = CanvasRenderingContext2D.prototype.clearRect;
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  window.texts[this.canvas.id] = [];
  return clear.apply(this, box);
};"""
"""Keeps what was written on each canvas since it was cleared, and where, in its pixels."""


class Screen:
    """A page that is open, what it has complained of, and where it must show a plan."""

    def __init__(self, browser, path, scheme="light", **options):
        self.page = browser.new_page(**{"viewport": SIZE, "color_scheme": scheme, **options})
        self.page.add_init_script(RECORD)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#map[data-draws]")
        self.measure()

    def measure(self):
        """Where the map is, which other windows and headers move."""
        self.view()
        self.box = self.page.locator("#map").bounding_box()

    def view(self):
        """Once the next frame is drawn: the times and addresses at the edges of the map."""
        self.page.evaluate(
            "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        )
        shown = self.page.evaluate("({...document.getElementById('map').dataset})")
        return [float(shown[name]) for name in ("t0", "t1", "a0", "a1")]

    def place(self, time, address):
        """CSS pixels of a time and an address."""
        t0, t1, a0, a1 = self.view()
        x = self.box["x"] + (time - t0) / (t1 - t0) * self.box["width"]
        y = self.box["y"] + (1 - (address - a0) / (a1 - a0)) * self.box["height"]
        return x, y

    def hover(self, time, address):
        """The tooltip there, or None."""
        self.page.mouse.move(*self.place(time, address))
        tooltip = self.page.locator("#tooltip")
        return tooltip.inner_text() if tooltip.is_visible() else None

    def tooltip(self):
        """What it says once the next frame is drawn, or None."""
        self.view()
        tooltip = self.page.locator("#tooltip")
        return tooltip.inner_text() if tooltip.is_visible() else None

    def texts(self, canvas):
        """Texts on a canvas, and where they are in its pixels."""
        self.view()
        return self.page.evaluate("id => window.texts[id]", canvas)

    def pixels(self, canvas, x, y, width=1, height=1):
        """Rows of (red, green, blue, opacity) of a canvas, by its own pixels."""
        # From a copy: the browser complains of canvases that are read often.
        flat = self.page.evaluate(
            "([id, x, y, width, height]) => {"
            "const copy = new OffscreenCanvas(width, height);"
            "const context = copy.getContext('2d', { willReadFrequently: true });"
            "context.drawImage(document.getElementById(id), -x, -y);"
            "return [...context.getImageData(0, 0, width, height).data]; }",
            [canvas, x, y, width, height],
        )
        found = list(zip(*[iter(flat)] * 4, strict=True))
        return [found[start : start + width] for start in range(0, len(found), width)]

    def size(self, canvas):
        """Width and height of a canvas in its own pixels."""
        return self.page.evaluate(
            "id => (({ width, height }) => [width, height])(document.getElementById(id))", canvas
        )

    def colour(self, name):
        """A colour of the style sheet as red, green and blue."""
        css = self.page.evaluate(
            "name => getComputedStyle(document.documentElement).getPropertyValue('--' + name)", name
        ).strip()
        return tuple(int(css[at : at + 2], 16) for at in (1, 3, 5))

    def choose(self, plan, value):
        """Select a value by a search for its name and its origin."""
        node = value.node
        self.page.fill("#search", f"{plan.graph.names[value]} {node.label if node else ''}")
        assert self.heading().split()[0] == plan.graph.names[value]

    def heading(self):
        return self.page.locator("#details h3").inner_text()

    def details(self):
        """What is told of the selected value: label → text."""
        return self.page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#details dt')]"
            ".map(term => [term.textContent, term.nextSibling.textContent]))"
        )

    def lists(self):
        """Lists of what is related to the selected value: title → entries."""
        return self.page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('#details h2')].map(title => "
            "[title.textContent, [...title.nextSibling.children].map(row => row.textContent)]))"
        )

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
        return self.view()


def written_last(plan, buffer, step):
    """The name of the value whose content a buffer has at a step, by all placements."""
    born = {}
    for value, placement in plan.placements.items():
        if placement.buffer == buffer.index and placement.how != "view":
            at = -1 if value.node is None else plan.graph.position[value.node]
            if at <= step:
                born[value] = at
    return plan.graph.names[max(born, key=born.__getitem__)] if born else "workspace"


def large(plan, screen):
    """Buffers that are some pixels wide and high while all plans are shown whole."""
    _, steps, _, height = screen.view()
    for buffer in plan.buffers:
        last = min(buffer.lifetime.last, len(plan.graph.nodes))
        wide = (last - buffer.lifetime.first) / steps * screen.box["width"]
        high = buffer.bytes / height * screen.box["height"]
        if wide > 5 and high > 5:
            yield buffer, (buffer.lifetime.first + last) // 2
