// The panels beside the map. They read the state of page.js, and call it to show another buffer.

function fillSummary() {
  element("plan-title").textContent = plans.length > 1 ? `plan: ${plan.label}` : plan.heading ?? "plan";
  const rows = plan.summary.flatMap(([label, figure]) => [make("dt", label), make("dd", figure)]);
  element("summary").replaceChildren(...rows);
  element("lowering").hidden = !plan.lowering.length;
  element("lowering-list").replaceChildren(...plan.lowering.map(line => make("li", line)));
}

function listKinds() {
  element("kinds").append(...content.kinds.map((kind, number) => {
    const box = make("input", "", { type: "checkbox", name: kind });
    box.addEventListener("change", () => { shown[number] = box.checked; redraw(); });
    const label = make("label");
    label.append(box, make("i"), content.kind_labels[number], make("span"));
    return label;
  }));
}

// Updates the rows of kinds in place, so that the focus stays.
function fillKinds() {
  const step = moment ?? plan.peak_step;
  element("kinds-title").textContent = `kinds: live at node ${step}`;
  [...element("kinds").children].forEach((row, number) => {
    const [box, swatch, size] = row.children;
    box.checked = shown[number];
    swatch.style.background = colours.css[number];
    size.textContent = formatBytes(plan.liveByKind[number][step]);
  });
}

const ROWS = 100;  // maximum number of entries in a list of related values
const LISTED = 40;  // maximum number of live buffers listed at a step

function fillMoment() {
  const { bytes } = plan.buffers, step = moment ?? plan.peak_step;
  const title = element("moment-title"), back = element("to-peak"), list = element("moment");
  title.textContent = `${moment === null ? "peak" : "live"}: ${formatBytes(plan.live[step])} at node ${step}`;
  const focused = [...list.querySelectorAll("button")].indexOf(document.activeElement);
  if (moment === null && document.activeElement === back) title.focus();
  back.hidden = moment === null;
  list.replaceChildren(...plan.largestAt(step, LISTED).map(buffer => {
    const value = plan.holder(buffer, step);
    const text = make("div"), swatch = make("i"), button = make("button");
    swatch.style.background = colours.css[plan.kindAt(buffer, step)];
    text.append(swatch, plan.nameOf(buffer, value));
    text.title = text.textContent;
    button.append(text, make("span", formatBytes(bytes[buffer])));
    button.setAttribute("aria-label", `show ${text.textContent}, ${formatBytes(bytes[buffer])}`);
    button.addEventListener("click", () => goTo(buffer, value));
    const row = make("li");
    row.append(button);
    return row;
  }));
  if (focused >= 0) ([...list.querySelectorAll("button")].slice(0, focused + 1).at(-1) ?? title).focus();
}

function describe(buffer, value) {
  const { offset, bytes, first, last } = plan.buffers, end = offset[buffer] + bytes[buffer];
  const hex = number => `0x${number.toString(16)}`;
  const rows = [];
  if (value >= 0) {
    const [, shape, dtype, size] = plan.values.types[plan.values.type[value]];
    const born = plan.values.node[value], until = plan.needed[value];
    rows.push(["shape", shape.length ? shape.join(" × ") : "scalar"], ["dtype", dtype],
      ["bytes", `${formatBytes(size)}${formatBytes(size).endsWith(" B") ? "" : ` (${size.toLocaleString("en-US")})`}`],
      ["live range", `nodes ${Math.max(0, born)} to ${until - 1}`],
      ["producer", born < 0 ? "none, an input or state" : `node ${born}, ${plan.nodeLabel(born)}`],
      ["placement", plan.why(value)]);
  }
  rows.push(["kind", content.kind_labels[plan.kindOf(buffer, value)]],
    ["buffer", `${formatBytes(bytes[buffer])}, nodes ${first[buffer]} to ${last[buffer] - 1}`],
    ["address", `${hex(offset[buffer])} to ${hex(end)}`]);
  describeCopies(rows, buffer, value);  // with a host map
  return rows;
}

function fillDetails() {
  const panel = element("details"), isFocused = panel.contains(document.activeElement);
  panel.replaceChildren(...(selected ? tellAll(selected) : [make("p", "Click a rectangle.")]));
  if (isFocused) (panel.querySelector("h3") ?? panel).focus();
}

function tellAll({ buffer, value }) {
  const list = make("dl");
  for (const [label, text] of describe(buffer, value)) list.append(make("dt", label), make("dd", text));
  const around = value < 0 ? [] : [make("h2", "neighbors"), neighbours(value)];
  return [make("h3", plan.nameOf(buffer, value), { tabIndex: -1 }), list, ...around, ...related(buffer, value)];
}

// Returns lists of related values: consumers, views, copies, originals, and values in the same buffer.
function related(buffer, value) {
  const others = plan.residents[buffer].filter(other => other !== value);
  const inBuffer = listed("other values in this buffer", others.map(other => toValue(other, plan.called(other))));
  if (value < 0) return inBuffer;
  const nodes = plan.readers[value];
  const readers = nodes.map(step => toValue(plan.written[step], `node ${step}, ${plan.nodeLabel(step)}`));
  if (plan.isOutput(value)) readers.push(make("div", "returned as an output of the program"));
  const copies = plan.copies.get(value) ?? [], views = plan.views.get(value) ?? [];
  const withNode = other => toValue(other, `node ${plan.values.node[other]}, ${plan.called(other)}`);
  const one = other => (other < 0 ? [] : [toValue(other, plan.called(other))]);
  return [
    ...listed("consumers", readers, true),
    ...listed("views of this value", views.map(withNode)),
    ...listed("part of", one(plan.whole(value))),
    ...listed("recomputed copies", copies.map(withNode)),
    ...listed("copy of", one(plan.values.copy_of[value])),
    ...relatedCopies(value),  // with a host map
    ...inBuffer,
  ];
}

function listed(title, rows, isAlways = false) {
  if (!rows.length && !isAlways) return [];
  const list = make("div", "", { className: "related" });
  list.append(...rows.slice(0, ROWS));
  if (rows.length > ROWS) list.append(make("div", `and ${rows.length - ROWS} more`));
  return [make("h2", `${title}: ${rows.length}`), list];
}

function toValue(value, text) {
  const button = make("button", text);
  button.setAttribute("aria-label", `show ${text}`);
  button.addEventListener("click", () => goTo(plan.values.buffer[value], value));
  return button;
}
