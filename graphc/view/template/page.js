// The page: the state of the view, drawing, and reactions to keys and buttons.

const content = await unpack(document.getElementById("content").textContent);
const plans = content.plans.map(model => new Plan(model, content));
const element = id => document.getElementById(id);
const make = (tag, text = "", attributes = {}) => {
  const made = Object.assign(document.createElement(tag), attributes);
  made.textContent = text;
  return made;
};

const shown = content.kinds.map(() => true);
const view = { axis: "node", t0: 0, t1: 1, a0: 0, a1: 1 };
let plan = plans[0], colours;
let selected = null, hovered = null, pointerStep = null;  // selected and hovered: { buffer, value }
let moment = null;  // the step whose live buffers are listed; null for the peak
let matches = [], match = -1, isPending = false;
let isFitted = content.fitted;  // true if the axes fit the shown plan, false if they fit the plans of all tabs
let turned = null;  // the view on the other time axis before the last switch

// Returns the end of the time axis for all tabs: that of the longest plan. Seconds are compared only
// among plans for one device: beside a plan for a CPU, a plan for a GPU would be a thin line.
function span(axis, of = plan) {
  const alike = plans.filter(each => axis === "node" || each.device === of.device);
  return Math.max(...alike.map(each => each.edges[axis][each.steps])) || 1;
}

const height = withLimit(Math.max(1, ...plans.map(each => each.arena_bytes)), plans);
const most = withLimit(Math.max(1, ...plans.map(each => each.live_bytes)), plans);

const ownHeight = () => withLimit(Math.max(1, plan.arena_bytes), [plan]);

const highest = () => (isFitted ? withLimit(Math.max(1, plan.live_bytes), [plan]) : most) * 1.08;

function showWhole() {
  isFitted = false;
  lookAtHost();  // with a host map
  Object.assign(view, { t0: 0, t1: span(view.axis), a0: 0, a1: height });
  redraw();
}

// Resets the zoom to the axes of the shown plan; if they are shown already, to the axes of all tabs.
function resetZoom() {
  if (isFitted && !isWhole()) showThisPlan(); else showWhole();
}

function showThisPlan() {
  isFitted = true;
  lookAtHost();  // with a host map
  look(0, plan.edges[view.axis][plan.steps], 0, ownHeight());
}

function clamp(low, high, limit, least) {
  const size = Math.min(limit, Math.max(least, high - low));
  const start = Math.min(Math.max(0, (low + high - size) / 2), limit - size);
  return [start, start + size];
}

// Shows a range of time and addresses. The minimum is 4 nodes and 4096 bytes, unless switching the time
// axis has led to fewer nodes.
function look(t0, t1, a0, a1) {
  const whole = span(view.axis), least = view.axis === "node" ? Math.min(4, whole) : whole / 1e6;
  [view.t0, view.t1] = clamp(t0, t1, whole, Math.min(least, view.t1 - view.t0));
  [view.a0, view.a1] = clamp(a0, a1, height, Math.min(4096, height));
  redraw();
}

function zoom(factor, x = 0.5, y = 0.5, times = true, addresses = true) {
  const across = times ? factor : 1, up = addresses ? factor : 1;
  const time = view.t0 + x * (view.t1 - view.t0), address = view.a0 + y * (view.a1 - view.a0);
  look(time - (time - view.t0) * across, time + (view.t1 - time) * across,
    address - (address - view.a0) * up, address + (view.a1 - address) * up);
}

function move(across, up) {
  const time = across * (view.t1 - view.t0), address = up * (view.a1 - view.a0);
  look(view.t0 + time, view.t1 + time, view.a0 + address, view.a1 + address);
}

// Shows a buffer in the middle of the map, with its surroundings.
function moveTo(buffer) {
  if (isOnHost(plan, buffer)) return moveToHost(buffer);  // with a host map
  const edges = plan.edges[view.axis], { offset, bytes, first, last } = plan.buffers;
  const begin = edges[first[buffer]], end = edges[last[buffer]];
  const times = Math.max((end - begin) * 0.75, span(view.axis) / 200);
  const addresses = Math.max(bytes[buffer] * 2.5, height / 60);
  const time = (begin + end) / 2, address = offset[buffer] + bytes[buffer] / 2;
  look(time - times, time + times, address - addresses, address + addresses);
}

// Requests a redraw. Several requests between two frames of the screen cause one redraw.
function redraw() {
  if (isPending) return;
  isPending = true;
  requestAnimationFrame(() => { isPending = false; draw(); });
}

// Draws every plan completely, on common axes, for comparison.
function drawAll() {
  element("all").querySelectorAll("canvas").forEach((canvas, number) => {
    const whole = { axis: view.axis, t0: 0, t1: span(view.axis, plans[number]), a0: 0, a1: height };
    drawMap(canvas, plans[number], whole, shown, colours);
  });
}

// Shows all plans side by side, or one plan. If the hidden part had the focus, the shown part gets it.
function showAll(isShown) {
  const [appears, hides] = isShown ? [element("all"), element("charts")] : [element("charts"), element("all")];
  const isFocused = hides.contains(document.activeElement);
  appears.hidden = false;
  hides.hidden = true;
  element("beside").setAttribute("aria-pressed", String(isShown));
  if (isShown) leave();
  if (isFocused) (isShown ? element("all").children[plans.indexOf(plan)] : element("map")).focus();
  redraw();
}

function draw() {
  writeAddress();
  if (element("charts").hidden) {
    drawAll();
    return;
  }
  const start = performance.now();
  drawMap(element("map"), plan, view, shown, colours);
  drawCurve(element("live"), plan, view, highest(), shown, colours);
  drawPhases(element("phases"), plan, view, colours);
  drawExchanges(element("exchanges"), plan, view, colours);
  drawBytes(element("addresses"), view.a0, view.a1, "arena address", colours);
  drawBytes(element("sizes"), 0, highest(), "live", colours);
  drawTimes(element("times"), view, plan.clock, colours);
  drawHost();  // with a host map
  hoverAgain();
  drawOver();
  Object.assign(element("map").dataset, view, {
    milliseconds: performance.now() - start,
    draws: Number(element("map").dataset.draws || 0) + 1,
  });
}

function drawOver() {
  const outlined = [];
  if (hovered) outlined.push({ buffer: hovered.buffer, colour: colours.ink });
  if (selected) outlined.push({ buffer: selected.buffer, colour: colours.mark });
  const steps = [{ step: pointerStep, colour: colours.quiet }, { step: moment, colour: colours.mark }];
  const lines = steps.filter(({ step }) => step !== null);
  drawHostOver(outlined, lines);  // with a host map
  drawMarks(element("marks"), plan, view, outlined, lines, colours);
  drawPeak(element("live-marks"), plan, view, highest(), lines, colours);
  drawLimit(element("marks"), view.a0, view.a1, plan.limit, colours);
  drawLimit(element("live-marks"), 0, highest(), plan.limit, colours);
}

// Returns true if the view shows the complete axes.
function isWhole() {
  if (!isHostWhole()) return false;  // with a host map
  const { t0, t1, a0, a1 } = view;
  const [time, bytes] = isFitted ? [plan.edges[view.axis][plan.steps], ownHeight()] : [span(view.axis), height];
  return !t0 && !a0 && t1 === time && a1 === bytes;
}

function showPlan(number) {
  showAll(false);
  const staysFitted = isFitted && isWhole();
  const same = plan.values.same[selected?.value ?? -1], before = span(view.axis);
  plan = plans[number];
  const scale = span(view.axis) / before;  // the visible fraction of the axis stays the same
  Object.assign(view, { t0: view.t0 * scale, t1: view.t1 * scale });
  [...element("tabs").children].forEach((tab, index) => {
    tab.setAttribute("aria-selected", String(index === number));
    tab.tabIndex = index === number ? 0 : -1;
  });
  if (plans.length > 1) element("charts").setAttribute("aria-labelledby", element("tabs").children[number].id);
  hovered = pointerStep = moment = null;
  const value = same === undefined ? -1 : plan.values.same.indexOf(same);
  select(value < 0 ? null : { buffer: plan.values.buffer[value], value });
  showExchanges();
  showHost();  // with a host map
  fillSummary();
  fillKinds();
  fillMoment();
  fillScopes();
  find(element("search").value, false);
  if (staysFitted) showThisPlan(); else redraw();
}

// Shows the row of collectives if the plan has any.
function showExchanges() {
  const isShown = plan.exchanges.node.length > 0;
  element("charts").classList.toggle("with-exchanges", isShown);
  element("exchanges-title").hidden = element("exchanged").hidden = !isShown;
}

function select(found) {
  selected = found;
  fillDetails();
  redraw();
}

// Selects a value, and shows its buffer in the middle of the map.
function goTo(buffer, value) {
  shown[plan.kindOf(buffer, value)] = true;
  fillKinds();
  showAll(false);
  select({ buffer, value });
  moveTo(buffer);
}

function setMoment(step) {
  const inside = step === null ? plan.peak_step : Math.min(plan.steps - 1, Math.max(0, step));
  moment = inside === plan.peak_step ? null : inside;
  fillKinds();
  fillMoment();
  fillScopes();
  redraw();
}

function find(text, moves = true) {
  matches = plan.search(text);
  const isAmong = !moves && selected && matches.includes(selected.value);
  match = isAmong ? matches.indexOf(selected.value) : Math.min(0, matches.length - 1);
  if (moves) showMatch(); else tellMatches();
}

function tellMatches() {
  const asked = element("search").value.trim();
  element("found").textContent = matches.length ? `${match + 1} of ${matches.length}` : asked ? "no match" : "";
}

function showMatch(step = 0) {
  if (matches.length) {
    match = (match + step + matches.length) % matches.length;
    goTo(plan.values.buffer[matches[match]], matches[match]);
  }
  tellMatches();
}

// Switches the time axis and keeps the visible nodes. Nodes that take no time have no width in seconds,
// so a switch back without other changes restores the stored view instead of converting times.
function setAxis(axis) {
  const { t0, t1 } = view;
  const isBack = turned && turned.plan === plan && turned.became.t0 === t0 && turned.became.t1 === t1;
  Object.assign(view, { axis }, isBack ? turned.was : timesOn(axis));
  turned = { plan, was: { t0, t1 }, became: { t0: view.t0, t1: view.t1 } };
  element("time").textContent = axis === "node" ? "show seconds" : "show nodes";
  redraw();
}

// Converts the visible range of time to another axis.
function timesOn(axis) {
  const spans = { [view.axis]: span(view.axis), [axis]: span(axis) };
  if (view.t0 <= 0 && view.t1 >= spans[view.axis]) return { t0: 0, t1: spans[axis] };
  const [t0, t1] = [view.t0, view.t1].map(time => plan.convert(time, view.axis, axis, spans));
  return { t0, t1: Math.max(t1, t0 + spans[axis] / 1e6) };
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  element("theme").textContent = theme === "dark" ? "light" : "dark";
  element("theme").setAttribute("aria-label", `use ${element("theme").textContent} colors`);
  colours = palette(content.kinds);
  fillKinds();
  fillMoment();
  redraw();
}

function clear() {
  showAll(false);
  element("search").value = "";
  find("");
  select(null);
  element("map").focus();
}

// Wraps an action that changes the view: it first returns from all plans to the map of one plan.
const onMap = change => () => { showAll(false); change(); };

const KEYS = {
  ArrowLeft: onMap(() => move(-0.2, 0)), ArrowRight: onMap(() => move(0.2, 0)),
  ArrowUp: onMap(() => move(0, 0.2)), ArrowDown: onMap(() => move(0, -0.2)),
  "+": onMap(() => zoom(1 / 1.4)), "=": onMap(() => zoom(1 / 1.4)), "-": onMap(() => zoom(1.4)),
  0: onMap(resetZoom), f: onMap(showThisPlan),
  a: () => showAll(plans.length > 1 && element("all").hidden),
  "/": () => element("search").select(), Escape: clear,
  n: () => showMatch(1), p: () => showMatch(-1),
  m: () => { setMoment(null); element("moment").querySelector("button")?.click(); },
  ",": () => setMoment((moment ?? plan.peak_step) - 1), ".": () => setMoment((moment ?? plan.peak_step) + 1),
  t: () => setAxis(view.axis === "node" ? "seconds" : "node"),
  d: () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"),
  "?": showHelp,
};

const MODIFIERS = ["Shift", "Control", "Alt", "Meta"];

// Shows the next or previous tab, for arrow keys on a tab.
function turnTabs(turn) {
  const number = (plans.indexOf(plan) + turn + plans.length) % plans.length;
  showPlan(number);
  element("tabs").children[number].focus();
}

function listenToKeys() {
  const search = element("search");
  document.addEventListener("keydown", event => {
    if (resting && !MODIFIERS.includes(event.key)) { leave(); drawOver(); }
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (element("help").open && event.key !== "?") return;  // Esc closes it, which the browser does
    if (event.target === search) {
      if (event.key === "Enter") showMatch(event.shiftKey ? -1 : 1);
      else if (event.key === "Escape") clear();
      return;
    }
    const number = Number(event.key), turn = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (turn && event.target.getAttribute?.("role") === "tab") turnTabs(turn);
    else if (number >= 1 && number <= plans.length) showPlan(number - 1);
    else if (KEYS[event.key]) KEYS[event.key]();
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", () => find(search.value));
}

function listenToButtons() {
  element("tabs").append(...plans.map((each, number) => {
    const tab = make("button", each.label, { title: `key ${number + 1}`, id: `tab-${number + 1}` });
    tab.setAttribute("role", "tab");
    tab.setAttribute("aria-controls", "charts");
    tab.addEventListener("click", () => showPlan(number));
    return tab;
  }));
  element("all").append(...plans.map((each, number) => {
    const button = make("button"), title = make("div", `${each.label} `);
    title.append(make("span", `arena ${formatBytes(each.arena_bytes)}, peak live bytes ${formatBytes(each.live_bytes)}`));
    if (each.host) title.lastChild.append(`, host memory ${formatBytes(each.host_bytes)}`);  // with a host map
    button.append(title, make("canvas"));
    button.setAttribute("aria-label", `show ${title.textContent}`);
    button.addEventListener("click", () => showPlan(number));
    return button;
  }));
  element("beside").hidden = plans.length < 2;
  element("beside").addEventListener("click", KEYS.a);
  element("tabs").hidden = plans.length < 2;
  if (plans.length > 1) element("charts").setAttribute("role", "tabpanel");
  element("time").addEventListener("click", KEYS.t);
  element("theme").addEventListener("click", KEYS.d);
  element("fit").addEventListener("click", onMap(showThisPlan));
  element("whole").addEventListener("click", KEYS[0]);
  element("to-peak").addEventListener("click", () => setMoment(null));
  for (const id of ["show-help", "show-keys", "close-help"]) element(id).addEventListener("click", showHelp);
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
element("title").textContent = content.title;
element("notes").hidden = !content.notes.length;
element("note-list").append(...content.notes.map(note => make("li", note)));
listKinds();
fillHelp();
listenToButtons();
listenToPointer();
listenToKeys();
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
readAddress();
window.addEventListener("hashchange", readAddress);
const resized = new ResizeObserver(redraw);
resized.observe(element("charts"));
resized.observe(element("all"));
