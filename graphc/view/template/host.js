// Host memory: a second map, and rows of the copies between device and host. Pages of plans without
// copies have neither this script nor the lines of other scripts that end in "with a host map".

const hostView = { a0: 0, a1: 1 };  // the shown bytes of host memory, relative to its start
const LANES = ["out-copies", "in-copies", "stalls"];  // canvases of copies to the host, copies back, and stalls

function isOnHost(plan, buffer) {
  return plan.content.kinds[plan.buffers.kind[buffer]] === "host";
}

// Adds to a plan `host`, the same plan with the buffers in host memory instead of those in the arena, and
// `lanes`, the same plan with copies or stalls as collectives. A plan without copies has neither.
function addHost(plan) {
  plan.host = null;
  plan.lanes = [];
  if (!plan.host_copies) return;
  const { node, arrival, to, begin, seconds, stall, original } = plan.host_copies;
  const originals = plan.originals = new Map();  // unfinished and finished copy → the value that was copied first
  original.forEach((value, at) => {
    for (const step of [node[at], arrival[at]]) for (const result of plan.results[step]) originals.set(result, value);
  });
  plan.host = Object.assign(Object.create(plan), {
    isHost: true, origin: value => plan.origin(originals.get(value) ?? value),
  });
  plan.host.indexLifetimes();
  const lane = (rows, nodes, times) => {
    const found = Object.assign(Object.create(plan), {
      rows, exchanges: { node: rows.map(at => nodes[at]), begin: rows.map(at => begin[at]), seconds: rows.map(at => seconds[at]) },
    });
    found.nodeLabel = step => {
      const value = original[rows[found.exchanges.node.indexOf(step)]];
      return plan.origin(value) || plan.values.name[value];
    };
    found.findExchanges();
    for (const axis of ["node", "seconds"]) found.exchanged[axis] = rows.map((at, row) => times(axis, at, found.exchanged[axis][row]));
    return found;
  };
  const every = [...node.keys()], after = (axis, at) => plan.edges[axis][arrival[at] + 1];
  // Nodes after the arrival may take no time, so a copy that ends with it would seem to end with them.
  const untilArrival = (axis, at, [first, last]) => [first, Math.min(last, after(axis, at))];
  plan.lanes = [
    lane(every.filter(at => to[at] === "host"), node, untilArrival),
    lane(every.filter(at => to[at] === "device"), node, untilArrival),
    lane(every.filter(at => stall[at]), arrival, (axis, at) => [plan.edges[axis][arrival[at]], after(axis, at)]),
  ];
}

// Returns true if a copy between device and host computes a value.
function isCopied(plan, value) {
  return Boolean(plan.originals?.has(value));
}

function copyWords(plan, value) {
  const name = plan.values.name[plan.originals.get(value)];
  return isOnHost(plan, plan.values.buffer[value]) ? `a copy of ${name} on the host` : `${name}, fetched from the host`;
}

// Returns the numbers of all copies of a value's original, to the host and back.
function copiesOf(value) {
  const wanted = plan.originals?.get(value) ?? value;
  return plan.host_copies ? [...plan.host_copies.node.keys()].filter(at => plan.host_copies.original[at] === wanted) : [];
}

const hostHeight = () => Math.max(1, ...plans.map(each => each.host_bytes ?? 0));

const wholeHost = () => (isFitted && plan.host ? Math.max(1, plan.host_bytes) : hostHeight());

const isHostWhole = () => !plan.host || (!hostView.a0 && hostView.a1 === wholeHost());

const hostAddresses = () => [hostView.a0, hostView.a1];

// Shows a range of host memory, by default all of it.
function lookAtHost(a0 = 0, a1 = wholeHost()) {
  [hostView.a0, hostView.a1] = clamp(a0, a1, hostHeight(), Math.min(4096, hostHeight()));
}

// Shows the range of host memory in a URL.
function readHost(text) {
  const range = (text ?? "").split(" ").map(Number);
  if (plan.host && range.length === 2 && range.every(Number.isFinite) && range[0] < range[1]) lookAtHost(...range);
}

function zoomHost(factor, y = 0.5) {
  const address = hostView.a0 + y * (hostView.a1 - hostView.a0);
  lookAtHost(address - (address - hostView.a0) * factor, address + (hostView.a1 - address) * factor);
}

function moveHost(up) {
  const bytes = up * (hostView.a1 - hostView.a0);
  lookAtHost(hostView.a0 + bytes, hostView.a1 + bytes);
}

// Shows a buffer on the host in the middle of its map; the arena's map shows the same time.
function moveToHost(buffer) {
  const edges = plan.edges[view.axis], { offset, bytes, first, last } = plan.buffers;
  const begin = edges[first[buffer]], end = edges[last[buffer]], time = (begin + end) / 2;
  const times = Math.max((end - begin) * 0.75, span(view.axis) / 200);
  const addresses = Math.max(bytes[buffer] * 2.5, hostHeight() / 60);
  const address = offset[buffer] - plan.host_start + bytes[buffer] / 2;
  lookAtHost(address - addresses, address + addresses);
  look(time - times, time + times, view.a0, view.a1);
}

// Returns the shown part of host memory by the addresses of the plan.
function hostWindow() {
  return { ...view, a0: plan.host_start + hostView.a0, a1: plan.host_start + hostView.a1 };
}

function showHost() {
  const isShown = Boolean(plan.host);
  element("charts").classList.toggle("with-host", isShown);
  for (const id of ["copy-titles", "copy-lanes", "host-addresses", "host-plot"]) element(id).hidden = !isShown;
}

function drawHost() {
  if (!plan.host) return;
  const host = colours.css[content.kinds.indexOf("host")];
  plan.lanes.forEach((lane, number) => {
    const exchange = LANES[number] === "stalls" ? colours.mark : host;
    drawExchanges(element(LANES[number]), lane, view, { ...colours, exchange });
  });
  drawMap(element("host-map"), plan.host, hostWindow(), shown, colours);
  drawBytes(element("host-addresses"), hostView.a0, hostView.a1, "host address", colours);
}

// Draws outlines and lines on the map of host memory, and takes its buffers from those outlined in the arena.
function drawHostOver(outlined, lines) {
  if (!plan.host) return;
  const there = outlined.filter(({ buffer }) => isOnHost(plan, buffer));
  drawMarks(element("host-marks"), plan, hostWindow(), there, lines, colours);
  outlined.splice(0, outlined.length, ...outlined.filter(({ buffer }) => !isOnHost(plan, buffer)));
}

// Adds rows on copies to the description of a buffer's value; addresses on the host are relative to its start.
function describeCopies(rows, buffer, value) {
  if (!plan.host) return;
  if (isOnHost(plan, buffer)) {
    const [begin, end] = [0, plan.buffers.bytes[buffer]].map(more => plan.buffers.offset[buffer] - plan.host_start + more);
    rows[rows.length - 1] = ["host address", `0x${begin.toString(16)} to 0x${end.toString(16)}`];
  }
  for (const at of copiesOf(value)) rows.push([`copy to ${plan.host_copies.to[at]}`, `${copyTimes(at)}, ${stallWords(at)}`]);
}

function copyTimes(at) {
  const { node, arrival, seconds } = plan.host_copies;
  return `nodes ${node[at]} to ${arrival[at]}, ${formatSeconds(seconds[at], seconds[at] / 100)}`;
}

function stallWords(at) {
  const { arrival, stall } = plan.host_copies;
  return stall[at] ? `node ${arrival[at]} waits ${formatSeconds(stall[at], stall[at] / 100)}` : "no node waits";
}

// Returns lists of the other copies of a value.
function relatedCopies(value) {
  const rows = copiesOf(value), original = plan.originals?.get(value) ?? value;
  const of = to => rows.filter(at => plan.host_copies.to[at] === to).map(at => plan.host_copies.result[at]);
  const links = values => values.filter(each => each !== value).map(each => toValue(each, plan.called(each)));
  return [
    ...listed("original on the device", links(rows.length ? [original] : [])),
    ...listed("copies on the host", links(of("host"))),
    ...listed("fetched from the host", links(of("device"))),
  ];
}

function tellHost(event) {
  const { step } = pointAt(event), box = element("host-map").getBoundingClientRect();
  const y = 1 - (event.clientY - box.top) / box.height;
  const address = plan.host_start + hostView.a0 + y * (hostView.a1 - hostView.a0);
  const buffer = step === null ? -1 : plan.host.bufferAt(step, address, shown);
  hovered = buffer < 0 ? null : { buffer, value: plan.valueAt(buffer, step, address) };
  pointerStep = step;
  const lines = hovered ? wordsOf(hovered, step) : [];
  const copies = hovered ? copiesOf(hovered.value) : [];
  showTooltip(event, [...lines, ...copies.map(at => [make("span", `to ${plan.host_copies.to[at]}: ${copyTimes(at)}`)])]);
}

// Returns the number of the copy under the pointer on a row, or -1.
function copyUnder(event, lane) {
  const { x } = pointAt(event), at = lane.exchangeAt(view.axis, view.t0 + x * (view.t1 - view.t0));
  return at < 0 ? -1 : lane.rows[at];
}

function tellCopy(event, number) {
  const at = copyUnder(event, plan.lanes[number]);
  hovered = null;
  pointerStep = at < 0 ? null : plan.host_copies[LANES[number] === "stalls" ? "arrival" : "node"][at];
  showTooltip(event, at < 0 ? [] : wordsOfCopy(at));
}

function wordsOfCopy(at) {
  const { to, bytes, original } = plan.host_copies;
  return [
    [make("b", plan.called(original[at]))],
    [`${formatBytes(bytes[at])} to the ${to[at]}, ${copyTimes(at)}`],
    [make("span", stallWords(at))],
  ];
}

function listenToHost() {
  const map = element("host-map");
  map.addEventListener("wheel", event => {
    event.preventDefault();
    const box = map.getBoundingClientRect(), turn = event.deltaY || event.deltaX;
    const factor = Math.exp(Math.max(-1, Math.min(1, turn / 300)));
    if (!event.shiftKey) zoomHost(factor, 1 - (event.clientY - box.top) / box.height);
    zoom(factor, pointAt(event).x, 0.5, !event.altKey, false);
  }, { passive: false });
  listenToDrags(map, tellHost, (right, up) => { moveHost(up); move(right, 0); });
  map.addEventListener("keydown", event => {  // keys of addresses; the others are those of the page
    const change = {
      ArrowUp: () => moveHost(0.2), ArrowDown: () => moveHost(-0.2), "+": () => zoomHost(1 / 1.4), "-": () => zoomHost(1.4),
    }[event.key];
    if (!change || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    change();
    redraw();
  });
  const leaveAll = () => { leave(); drawOver(); };
  map.addEventListener("pointerleave", leaveAll);
  LANES.forEach((id, number) => {
    const canvas = element(id);
    canvas.addEventListener("pointermove", event => hover(event, each => tellCopy(each, number)));
    canvas.addEventListener("pointerleave", leaveAll);
    canvas.addEventListener("click", event => {
      const at = copyUnder(event, plan.lanes[number]), value = at < 0 ? -1 : plan.host_copies.result[at];
      if (value >= 0) goTo(plan.values.buffer[value], value);
    });
  });
}
