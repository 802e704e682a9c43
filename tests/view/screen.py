"""A page that is open in a browser, and where it must show what."""

from view.networks import STRATEGIES, planned

NAMES = ("none", "sharing", "packed", "cheap", "sublinear")
PLANS = {name: planned(**options) for name, options in zip(NAMES, STRATEGIES, strict=True)}
SIZE = {"width": 1440, "height": 900}


class Screen:
    """A page that is open, what it has complained of, and where it must show a plan."""

    def __init__(self, browser, path, scheme="light"):
        self.page = browser.new_page(viewport=SIZE, color_scheme=scheme)
        self.complaints, self.requests = [], []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(path.as_uri())
        self.page.wait_for_selector("#map[data-draws]")
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
    steps = max(len(each.graph.nodes) for each in PLANS.values())
    height = max(each.arena_bytes for each in PLANS.values())
    for buffer in plan.buffers:
        last = min(buffer.lifetime.last, len(plan.graph.nodes))
        wide = (last - buffer.lifetime.first) / steps * screen.box["width"]
        high = buffer.bytes / height * screen.box["height"]
        if wide > 5 and high > 5:
            yield buffer, (buffer.lifetime.first + last) // 2
