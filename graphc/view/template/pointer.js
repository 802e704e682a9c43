// The pointer: finding the buffer under it, the tooltip, clicks, dragging and the wheel.

// Returns the position, address and step under the pointer. The address is meaningful only on the map.
function pointAt(event) {
  const box = element("map").getBoundingClientRect();
  const x = (event.clientX - box.left) / box.width, y = 1 - (event.clientY - box.top) / box.height;
  const time = view.t0 + x * (view.t1 - view.t0);
  const address = view.a0 + y * (view.a1 - view.a0);
  const isInside = time < plan.edges[view.axis][plan.steps];
  return { x, y, step: isInside ? plan.stepAt(view.axis, time) : null, address };
}

let resting = null;  // the last pointer event, and the function that shows the tooltip for it

function hover(event, tell) {
  resting = { event, tell };
  tell(event);
  drawOver();
}

// Updates the tooltip when the view has changed under a pointer that did not move.
function hoverAgain() {
  if (resting) resting.tell(resting.event);
}

function leave() {
  resting = hovered = pointerStep = null;
  element("tooltip").hidden = true;
}

function tellMap(event) {
  const { step, address } = pointAt(event);
  const buffer = step === null ? -1 : plan.bufferAt(step, address, shown);
  hovered = buffer < 0 ? null : { buffer, value: plan.valueAt(buffer, step, address) };
  pointerStep = step;
  showTooltip(event, hovered ? wordsOf(hovered, step) : []);
}

function tellCurve(event) {
  const { step } = pointAt(event);
  hovered = null;
  pointerStep = step;
  showTooltip(event, step === null ? [] : wordsOfStep(step));
}

function tellExchange(event) {
  const at = exchangeUnder(event);
  hovered = null;
  pointerStep = at < 0 ? null : plan.exchanges.node[at];
  showTooltip(event, at < 0 ? [] : wordsOfExchange(at));
}

// Returns the number of the collective under the pointer, or -1.
function exchangeUnder(event) {
  const { x } = pointAt(event);
  return plan.exchangeAt(view.axis, view.t0 + x * (view.t1 - view.t0));
}

// Returns the lines of a tooltip, each a list of texts and elements.
function wordsOf({ buffer, value }, step) {
  const lines = [[make("b", plan.nameOf(buffer, value))]];
  if (value >= 0) lines.push([`${plan.values.types[plan.values.type[value]][0]}, ${plan.why(value)}`]);
  const { bytes, first, last } = plan.buffers;
  const nodes = `nodes ${first[buffer]} to ${last[buffer] - 1}`;
  lines.push([make("span", `${content.kind_labels[plan.kindAt(buffer, step)]}, ${formatBytes(bytes[buffer])}, ${nodes}`)]);
  lines.push([make("span", `node ${step}: ${plan.nodeLabel(step)}`)]);
  return lines;
}

function wordsOfStep(step) {
  const kinds = content.kind_labels.map((kind, number) => [kind, plan.liveByKind[number][step]]);
  const parts = kinds.filter(([, size]) => size).map(([kind, size]) => `${kind} ${formatBytes(size)}`);
  return [
    [make("b", `${formatBytes(plan.live[step])} live`)], [parts.join(", ")],
    [make("span", `node ${step}: ${plan.nodeLabel(step)}`)],
  ];
}

function wordsOfExchange(at) {
  const { node, seconds, sent_bytes: sent } = plan.exchanges;
  return [
    [make("b", `node ${node[at]}: ${plan.nodeLabel(node[at])}`)],
    [`sends ${formatBytes(sent[at])} to other ranks in ${formatSeconds(seconds[at], seconds[at] / 100)}`],
  ];
}

function showTooltip(event, lines) {
  const tooltip = element("tooltip");
  tooltip.hidden = !lines.length;
  tooltip.replaceChildren(...lines.map(parts => { const line = make("div"); line.append(...parts); return line; }));
  const frame = element("charts").getBoundingClientRect();
  const left = event.clientX - frame.left + 14, top = event.clientY - frame.top + 14;
  tooltip.style.left = `${Math.min(left, frame.width - tooltip.offsetWidth - 8)}px`;
  tooltip.style.top = `${Math.min(top, frame.height - tooltip.offsetHeight - 8)}px`;
}

// Shows what is under the pointer on a map. A drag moves the map by parts of its width and height, a click selects.
function listenToDrags(map, tell, moveBy) {
  let dragged = null;
  map.addEventListener("pointerdown", event => {
    if (event.button !== 0) return;
    dragged = { x: event.clientX, y: event.clientY, hasMoved: false };
    map.setPointerCapture(event.pointerId);
  });
  map.addEventListener("pointermove", event => {
    if (!dragged) return hover(event, tell);
    const across = event.clientX - dragged.x, down = event.clientY - dragged.y;
    if (!dragged.hasMoved && Math.hypot(across, down) < 4) return undefined;
    leave();
    moveBy(-across / map.clientWidth, down / map.clientHeight);
    dragged = { x: event.clientX, y: event.clientY, hasMoved: true };
    return undefined;
  });
  map.addEventListener("pointerup", event => {
    if (dragged && !dragged.hasMoved) { hover(event, tell); select(hovered); }
    dragged = null;
  });
  map.addEventListener("pointercancel", () => { dragged = null; });
}

function listenToPointer() {
  const map = element("map");
  map.addEventListener("wheel", event => {
    event.preventDefault();
    const { x, y } = pointAt(event);
    const turn = event.deltaY || event.deltaX;  // browsers turn the wheel sideways while Shift is down
    zoom(Math.exp(Math.max(-1, Math.min(1, turn / 300))), x, y, !event.altKey, !event.shiftKey);
  }, { passive: false });
  listenToDrags(map, tellMap, move);
  const curve = element("curve");
  curve.addEventListener("pointermove", event => hover(event, tellCurve));
  curve.addEventListener("click", event => setMoment(pointAt(event).step));
  const exchanges = element("exchanged");
  exchanges.addEventListener("pointermove", event => hover(event, tellExchange));
  exchanges.addEventListener("click", event => {
    const at = exchangeUnder(event), value = at < 0 ? -1 : plan.written[plan.exchanges.node[at]];
    if (value >= 0) goTo(plan.values.buffer[value], value);
  });
  listenToHost();  // with a host map
  for (const place of [map, curve, exchanges]) {
    place.addEventListener("pointerleave", () => { leave(); drawOver(); });
  }
}
