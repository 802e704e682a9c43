// Drawing: the map of rectangles as pixels, the curve of live bytes, and the axes.

const LABEL = { width: 64, height: 15 };  // minimum size of a rectangle with a label, in CSS pixels

function fit(canvas) {
  const scale = window.devicePixelRatio || 1;
  const width = Math.max(1, Math.round(canvas.clientWidth * scale));
  const height = Math.max(1, Math.round(canvas.clientHeight * scale));
  if (canvas.width !== width) canvas.width = width;
  if (canvas.height !== height) canvas.height = height;
  const context = canvas.getContext("2d");
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height, scale };
}

// Colors of the style sheet as numbers: each kind has three shades, so that adjacent buffers differ.
function palette(kinds) {
  const style = getComputedStyle(document.documentElement);
  const read = name => style.getPropertyValue(`--${name}`).trim();
  const pixel = (text, shade) => {
    const parts = [1, 3, 5].map(at => Math.min(255, Math.round(parseInt(text.slice(at, at + 2), 16) * shade)));
    return ((255 << 24) | (parts[2] << 16) | (parts[1] << 8) | parts[0]) >>> 0;
  };
  const names = kinds.map(kind => read(kind.replace(" ", "-")));
  return {
    css: names,
    shades: names.map(name => [1, 0.93, 1.07].map(shade => pixel(name, shade))),
    texts: names.map(textColour),
    borders: names.map(name => pixel(name, 0.68)),
    ink: read("ink"), quiet: read("quiet"), line: read("line"), mark: read("mark"), page: read("page"),
    exchange: read("exchange"), forward: read("feature-map"), backward: read("gradient"), recomputed: read("mirror"),
  };
}

// Returns black or white, whichever has more contrast with a background color by WCAG's formula.
function textColour(background) {
  const light = [1, 3, 5].map(at => parseInt(background.slice(at, at + 2), 16) / 255)
    .map(part => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
  const luminance = 0.2126 * light[0] + 0.7152 * light[1] + 0.0722 * light[2];
  return (luminance + 0.05) / 0.05 > 1.05 / (luminance + 0.05) ? "#000000" : "#ffffff";
}

// For each row or column of pixels, a span that is already filled. Most thin rectangles are inside such a span.
class Spans {
  constructor(lines) {
    this.begin = new Int32Array(lines);
    this.end = new Int32Array(lines);
  }

  // Returns true if the span is filled already; otherwise records that the caller fills it.
  holds(line, begin, end) {
    if (this.begin[line] <= begin && end <= this.end[line]) return true;
    if (end - begin > this.end[line] - this.begin[line]) [this.begin[line], this.end[line]] = [begin, end];
    return false;
  }
}

// Draws the rectangles. They never overlap, so together they fill each pixel about once. Writing pixels
// is therefore faster than canvas calls. Rectangles thinner than a pixel fill only empty pixels.
function drawMap(canvas, plan, view, shown, colours) {
  const { context, width, height, scale } = fit(canvas);
  const image = context.createImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  const edges = plan.edges[view.axis], { offset, bytes } = plan.buffers;
  const perTime = width / (view.t1 - view.t0), perByte = height / (view.a1 - view.a0);
  const begin = plan.stepAt(view.axis, view.t0), end = plan.stepAt(view.axis, view.t1) + 1;
  const labels = [], rows = new Spans(height), columns = new Spans(width);
  const paint = (buffer, [first, last, kind], isFirst) => {
    if (!shown[kind]) return;
    let left = Math.round((edges[first] - view.t0) * perTime);
    let right = Math.round((edges[last] - view.t0) * perTime);
    let bottom = Math.round(height - (offset[buffer] - view.a0) * perByte);
    let top = Math.round(height - (offset[buffer] + bytes[buffer] - view.a0) * perByte);
    if (right < 0 || left >= width || bottom <= 0 || top > height) return;
    const isNarrow = right <= left, isLow = bottom <= top;
    if (isNarrow) right = left + 1;
    if (isLow) top = bottom - 1;
    left = Math.max(0, left); right = Math.min(width, right);
    top = Math.max(0, top); bottom = Math.min(height, bottom);
    const colour = colours.shades[kind][buffer % 3];
    if (isNarrow || isLow) {
      if (isLow ? rows.holds(top, left, right) : columns.holds(left, top, bottom)) return;
      for (let y = top; y < bottom; y++) {
        for (let at = y * width + left; at < y * width + right; at++) if (!pixels[at]) pixels[at] = colour;
      }
      return;
    }
    for (let y = top; y < bottom; y++) pixels.fill(colour, y * width + left, y * width + right);
    if (right - left < 4 || bottom - top < 4) return;
    const border = colours.borders[kind];
    pixels.fill(border, (bottom - 1) * width + left, (bottom - 1) * width + right);
    if (isFirst) for (let y = top; y < bottom; y++) pixels[y * width + left] = border;
    if (right - left > LABEL.width * scale && bottom - top > LABEL.height * scale) {
      labels.push({ buffer, step: (first + last) >> 1, kind, left, right, top, bottom });
    }
  };
  plan.alive(begin, end, buffer => {
    if (bytes[buffer]) plan.spans[buffer].forEach((span, at) => paint(buffer, span, !at));
  });
  context.putImageData(image, 0, 0);
  drawLabels(context, plan, labels.slice(0, 400), colours, scale);
}

function drawLabels(context, plan, labels, colours, scale) {
  context.font = `${11 * scale}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (const { buffer, step, kind, left, right, top, bottom } of labels) {
    const value = plan.holder(buffer, step);
    const text = (value < 0 ? "" : plan.origin(value)) || plan.nameOf(buffer, value);
    context.fillStyle = colours.texts[kind];
    const most = Math.floor((right - left) / (6.2 * scale));
    context.fillText(text.length > most ? `${text.slice(0, most - 1)}…` : text, left + 4 * scale, (top + bottom) / 2);
  }
}

// Draws outlines of buffers, and vertical lines at steps.
function drawMarks(canvas, plan, view, outlined, lines, colours) {
  const { context, width, height, scale } = fit(canvas);
  const edges = plan.edges[view.axis];
  const across = time => (time - view.t0) / (view.t1 - view.t0) * width;
  const down = address => height - (address - view.a0) / (view.a1 - view.a0) * height;
  context.globalAlpha = 0.5;
  for (const { step, colour } of lines) {
    context.fillStyle = colour;
    context.fillRect(Math.round(across((edges[step] + edges[step + 1]) / 2)), 0, scale, height);
  }
  context.globalAlpha = 1;
  for (const { buffer, colour } of outlined) {
    const { offset, bytes, first, last } = plan.buffers;
    const left = across(edges[first[buffer]]), right = across(edges[last[buffer]]);
    const top = down(offset[buffer] + bytes[buffer]), bottom = down(offset[buffer]);
    context.strokeStyle = colour;
    context.lineWidth = 2 * scale;
    context.strokeRect(left, top, Math.max(2 * scale, right - left), Math.max(2 * scale, bottom - top));
  }
}

// Draws live bytes by kind, stacked. Each column of pixels shows the step with the most live bytes in it.
function drawCurve(canvas, plan, view, most, shown, colours) {
  const { context, width, height, scale } = fit(canvas);
  const perTime = (view.t1 - view.t0) / width;
  const totals = [];
  for (let x = 0; x < width; x++) {
    const begin = plan.stepAt(view.axis, view.t0 + x * perTime);
    const end = plan.stepAt(view.axis, view.t0 + (x + 1) * perTime);
    if (view.t0 + x * perTime >= plan.edges[view.axis][plan.steps]) break;
    let best = begin, highest = -1;
    for (let step = begin; step <= Math.max(begin, end - 1); step++) {
      if (plan.live[step] > highest) [best, highest] = [step, plan.live[step]];
    }
    let bottom = 0;
    plan.liveByKind.forEach((live, kind) => {
      if (!shown[kind]) return;
      if (plan.content.kinds[kind] === "host") return;  // with a host map
      const size = live[best] / most * height;
      context.fillStyle = colours.css[kind];
      context.fillRect(x, height - bottom - size, 1, size);
      bottom += size;
    });
    totals.push(highest / most * height);
  }
  context.beginPath();
  totals.forEach((total, x) => context.lineTo(x + 0.5, height - total));
  context.strokeStyle = colours.ink;
  context.lineWidth = scale;
  context.stroke();
}

// Draws the forward and the backward pass and, below them, the recomputed nodes.
function drawPhases(canvas, plan, view, colours) {
  const { context, width, height, scale } = fit(canvas);
  const edges = plan.edges[view.axis], strip = Math.round(height * 0.75);
  const across = time => Math.min(width, Math.max(0, (time - view.t0) / (view.t1 - view.t0) * width));
  context.font = `${11 * scale}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  for (const [first, last, pass] of plan.passes) {
    const left = across(edges[first]), right = across(edges[last]);
    context.fillStyle = colours[pass];
    context.fillRect(left, pass === "recomputed" ? strip : 0, right - left, pass === "recomputed" ? height - strip : strip);
    if (pass === "recomputed" || right - left < LABEL.width * scale) continue;
    context.fillStyle = textColour(colours[pass]);
    context.fillText(pass, left + 4 * scale, strip / 2);
  }
}

// Draws the collectives between ranks, which overlap with nodes.
function drawExchanges(canvas, plan, view, colours) {
  const { context, width, height, scale } = fit(canvas);
  const across = time => (time - view.t0) / (view.t1 - view.t0) * width;
  context.font = `${11 * scale}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  plan.exchanged[view.axis].forEach(([first, last], at) => {
    const left = Math.max(0, across(first)), right = Math.min(width, across(last));
    if (right < 0 || left >= width) return;
    context.fillStyle = colours.exchange;
    context.fillRect(left, 0, Math.max(scale, right - left - scale), height);  // a gap to the next one
    if (right - left < LABEL.width * scale) return;
    const text = plan.nodeLabel(plan.exchanges.node[at]), most = Math.floor((right - left) / (6.2 * scale));
    context.fillStyle = textColour(colours.exchange);
    context.fillText(text.length > most ? `${text.slice(0, most - 1)}…` : text, left + 4 * scale, height / 2);
  });
}

// Draws the peak, and vertical lines at steps, on top of the curve.
function drawPeak(canvas, plan, view, most, lines, colours) {
  const { context, width, height, scale } = fit(canvas);
  const edges = plan.edges[view.axis];
  const middle = at => ((edges[at] + edges[at + 1]) / 2 - view.t0) / (view.t1 - view.t0) * width;
  const x = middle(plan.peak_step), y = height - plan.live_bytes / most * height;
  for (const { step, colour } of lines) {
    context.fillStyle = colour;
    context.fillRect(Math.round(middle(step)), 0, scale, height);
  }
  if (x < 0 || x > width) return;
  context.fillStyle = context.strokeStyle = colours.mark;
  context.setLineDash([4 * scale, 3 * scale]);
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(x, height);
  context.stroke();
  context.beginPath();
  context.arc(x, y, 4 * scale, 0, 7);
  context.fill();
  context.font = `600 ${11 * scale}px system-ui, sans-serif`;
  const text = `peak ${formatBytes(plan.live_bytes)} at node ${plan.peak_step}`;
  const room = context.measureText(text).width + 10 * scale;
  const left = x + room < width ? x + 8 * scale : Math.max(0, x - room);
  const base = Math.max(12 * scale, y + 4 * scale);
  context.strokeStyle = colours.page;
  context.setLineDash([]);
  context.lineWidth = 4 * scale;
  context.strokeText(text, left, base);
  context.fillText(text, left, base);
}

// Draws the labels of a byte axis at multiples of a power of two.
function drawBytes(canvas, low, high, title, colours) {
  const { context, width, height, scale } = fit(canvas);
  const wanted = (high - low) / Math.max(2, height / (44 * scale));
  const step = 2 ** Math.ceil(Math.log2(Math.max(1, wanted)));
  context.fillStyle = colours.quiet;
  context.font = `${11 * scale}px system-ui, sans-serif`;
  context.textAlign = "right";
  for (let at = Math.ceil(low / step) * step; at <= high; at += step) {
    const y = height - (at - low) / (high - low) * height;
    context.fillRect(width - 4 * scale, y, 4 * scale, scale);
    context.textBaseline = y < 5 * scale ? "top" : y > height - 5 * scale ? "bottom" : "middle";
    context.fillText(formatBytes(at, step), width - 7 * scale, y);
  }
  context.translate(9 * scale, height / 2);
  context.rotate(-Math.PI / 2);
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(title, 0, 0);
}

function drawTimes(canvas, view, clock, colours) {
  const { context, width, height, scale } = fit(canvas);
  const span = view.t1 - view.t0, wanted = span / Math.max(2, width / (90 * scale));
  const power = 10 ** Math.floor(Math.log10(wanted));
  let step = power * [1, 2, 5, 10].find(factor => factor * power >= wanted);
  if (view.axis === "node") step = Math.max(1, step);
  context.fillStyle = colours.quiet;
  context.font = `${11 * scale}px system-ui, sans-serif`;
  context.textBaseline = "top";
  for (let at = Math.ceil(view.t0 / step) * step; at <= view.t1; at += step) {
    const x = (at - view.t0) / span * width;
    context.fillRect(x, 0, scale, 4 * scale);
    const text = view.axis === "node" ? String(Math.round(at)) : formatSeconds(at, step);
    context.textAlign = x < 12 * scale ? "left" : x > width - 14 * scale ? "right" : "center";
    context.fillText(text, x, 6 * scale);
  }
  context.textAlign = "center";
  const title = view.axis === "node" ? "node" : `seconds: ${clock}`;
  context.fillText(title, width / 2, height - 13 * scale);
}

// Formats a number of bytes. For labels of an axis, `step` is their distance: the unit is the largest of
// which the step is at least a quarter, and there are enough digits to distinguish labels.
function formatBytes(count, step = count / 4) {
  let size = count, unit = 0;
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  for (; Math.abs(step) >= 256 && unit < units.length - 1; step /= 1024) [size, unit] = [size / 1024, unit + 1];
  const digits = size < 10 || step < 1 ? 2 : 1;
  return `${unit && size % 1 ? size.toFixed(digits) : size} ${units[unit]}`;
}

function formatSeconds(seconds, step) {
  if (!seconds) return "0";
  const [factor, unit] = step >= 1 ? [1, "s"] : step >= 1e-3 ? [1e3, "ms"] : [1e6, "µs"];
  const digits = Math.max(0, -Math.floor(Math.log10(step * factor)));
  return `${(seconds * factor).toFixed(Math.min(digits, 6))} ${unit}`;
}
