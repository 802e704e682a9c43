// The panels beside the map: they read what page.js keeps, and ask it to show another buffer.

function fillSummary() {
  const rows = plan.summary.flatMap(([label, figure]) => [make("dt", label), make("dd", figure)]);
  element("summary").replaceChildren(...rows);
}

function fillKinds() {
  const step = moment ?? plan.peak_step;
  element("kinds-title").textContent = `kinds: live at node ${step}`;
  element("kinds").replaceChildren(...content.kinds.map((kind, number) => {
    const box = make("input", "", { type: "checkbox", checked: shown[number], name: kind });
    box.addEventListener("change", () => { shown[number] = box.checked; redraw(); });
    const swatch = make("i");
    swatch.style.background = colours.css[number];
    const label = make("label");
    label.append(box, swatch, kind, make("span", formatBytes(plan.liveByKind[number][step])));
    return label;
  }));
}

const LISTED = 40;  // of the buffers that are alive at a step

function fillMoment() {
  const { bytes, kind } = plan.buffers, step = moment ?? plan.peak_step;
  element("moment-title").textContent =
    `${moment === null ? "peak" : "live"}: ${formatBytes(plan.live[step])} at node ${step}`;
  element("to-peak").hidden = moment === null;
  element("moment").replaceChildren(...plan.largestAt(step, LISTED).map(buffer => {
    const value = plan.holder(buffer, step);
    const text = make("div"), swatch = make("i"), button = make("button");
    swatch.style.background = colours.css[kind[buffer]];
    text.append(swatch, value < 0 ? plan.workspaceName(buffer) : called(value));
    text.title = text.textContent;
    button.append(text, make("span", formatBytes(bytes[buffer])));
    button.addEventListener("click", () => goTo(buffer, value));
    const row = make("li");
    row.append(button);
    return row;
  }));
}

function describe(buffer, value) {
  const { offset, bytes, first, last, kind } = plan.buffers, end = offset[buffer] + bytes[buffer];
  const hex = number => `0x${number.toString(16)}`;
  const rows = [];
  if (value >= 0) {
    const [, shape, dtype, size] = plan.values.types[plan.values.type[value]];
    const born = plan.values.node[value], until = plan.until(value);
    rows.push(["shape", shape.length ? shape.join(" × ") : "scalar"], ["dtype", dtype],
      ["bytes", `${formatBytes(size)}${formatBytes(size).endsWith(" B") ? "" : ` (${size})`}`],
      ["lives", `nodes ${Math.max(0, born)} to ${until - 1}`],
      ["made by", born < 0 ? "given from outside the step" : `node ${born}, ${plan.nodeLabel(born)}`],
      ["why here", plan.why(value)]);
  }
  rows.push(["kind", content.kinds[kind[buffer]]], ["buffer", `${formatBytes(bytes[buffer])}, nodes ${first[buffer]} to ${last[buffer] - 1}`],
    ["address", `${hex(offset[buffer])} to ${hex(end)}`]);
  return rows;
}

function fillDetails() {
  const panel = element("details");
  if (!selected) {
    panel.replaceChildren(make("p", "Click a rectangle."));
    return;
  }
  const { buffer, value } = selected;
  const list = make("dl");
  for (const [label, text] of describe(buffer, value)) list.append(make("dt", label), make("dd", text));
  panel.replaceChildren(make("h3", heading(buffer, value)), list, ...related(buffer, value));
}

// Lists of what else to look at: what reads a value, what it was copied from, what shares its bytes.
function related(buffer, value) {
  const others = plan.residents[buffer].filter(other => other !== value);
  const inBuffer = listed("also in this buffer", others.map(other => toValue(other, called(other))));
  if (value < 0) return inBuffer;
  const readers = plan.readers[value].map(step => toValue(plan.written[step], `node ${step}, ${plan.nodeLabel(step)}`));
  if (plan.isOutput(value)) readers.push(make("div", "the caller: an output"));
  const copies = plan.copies.get(value) ?? [], original = plan.values.copy_of[value];
  return [
    ...listed("readers", readers, true),
    ...listed("computed again", copies.map(copy => toValue(copy, `node ${plan.values.node[copy]}, ${called(copy)}`))),
    ...listed("a copy of", original < 0 ? [] : [toValue(original, called(original))]),
    ...inBuffer,
  ];
}

function listed(title, rows, isAlways = false) {
  if (!rows.length && !isAlways) return [];
  const list = make("div", "", { className: "related" });
  list.append(...rows.slice(0, 100));
  return [make("h2", `${title}: ${rows.length}`), list];
}

function toValue(value, text) {
  const button = make("button", text);
  button.addEventListener("click", () => goTo(plan.values.buffer[value], value));
  return button;
}

const called = value => `${plan.values.name[value]} ${plan.origin(value)}`;

function heading(buffer, value) {
  return value < 0 ? plan.workspaceName(buffer) : called(value);
}
