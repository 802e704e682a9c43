// The panels beside the map: they read what page.js keeps, and ask it to show another buffer.

function fillSummary() {
  const rows = plan.summary.flatMap(([label, figure]) => [make("dt", label), make("dd", figure)]);
  element("summary").replaceChildren(...rows);
}

function fillKinds() {
  element("kinds").replaceChildren(...content.kinds.map((kind, number) => {
    const box = make("input", "", { type: "checkbox", checked: shown[number], name: kind });
    box.addEventListener("change", () => { shown[number] = box.checked; redraw(); });
    const swatch = make("i");
    swatch.style.background = colours.css[number];
    const label = make("label");
    label.append(box, swatch, kind, make("span", formatBytes(plan.bytes_by_kind[kind])));
    return label;
  }));
}

function fillPeak() {
  const { bytes, kind } = plan.buffers, step = plan.peak_step;
  element("peak-title").textContent = `peak: ${formatBytes(plan.live_bytes)} at node ${step}`;
  element("peak").replaceChildren(...plan.peak.map(buffer => {
    const value = plan.valueAt(buffer, step), name = plan.nameAt(buffer, step);
    const text = make("div"), swatch = make("i"), button = make("button");
    swatch.style.background = colours.css[kind[buffer]];
    text.append(swatch, value < 0 ? name : `${name} ${plan.origin(value)}`);
    text.title = text.textContent;
    button.append(text, make("span", formatBytes(bytes[buffer])));
    button.addEventListener("click", () => {
      showAll(false);
      select({ buffer, value });
      moveTo(buffer);
    });
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
  const parts = [make("h3", heading(buffer, value)), list];
  if (value >= 0) {
    const readers = plan.readers[value].map(step => make("li", `node ${step}, ${plan.nodeLabel(step)}`));
    if (plan.isOutput(value)) readers.push(make("li", "the caller: an output"));
    parts.push(make("h2", `readers: ${readers.length}`));
    parts.push(Object.assign(make("ul"), { className: "reads" }));
    parts.at(-1).append(...readers.slice(0, 100));
  }
  const others = plan.residents[buffer].filter(other => other !== value);
  if (others.length) {
    parts.push(make("h2", `also in this buffer: ${others.length}`));
    parts.push(Object.assign(make("div"), { className: "reads" }));
    parts.at(-1).append(...others.slice(0, 100).map(other => {
      const button = make("button", `${plan.values.name[other]} ${plan.origin(other)}`);
      button.addEventListener("click", () => select({ buffer, value: other }));
      return button;
    }));
  }
  panel.replaceChildren(...parts);
}

function heading(buffer, value) {
  if (value < 0) return plan.nameAt(buffer, plan.buffers.first[buffer]);
  return `${plan.values.name[value]} ${plan.origin(value)}`;
}
