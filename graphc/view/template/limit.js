// The bytes that a plan may have: its budget, or the memory of its device, as a line in map and curve.

const NEAR = 1.25;  // times the bytes that are shown anyway: a limit beyond leaves the axes as they are

// The bytes that an axis has to reach, so that a limit that is near is seen.
function withLimit(bytes, of) {
  const near = of.map(each => each.limit?.bytes ?? 0).filter(limit => limit <= bytes * NEAR);
  return Math.max(bytes, ...near);
}

// On a canvas that shows the bytes from `low` to `high`.
function drawLimit(canvas, low, high, limit, colours) {
  if (!limit || limit.bytes < low || limit.bytes > high) return;
  const context = canvas.getContext("2d"), scale = window.devicePixelRatio || 1, { width, height } = canvas;
  const y = height - (limit.bytes - low) / (high - low) * height, text = `${limit.name} ${formatBytes(limit.bytes)}`;
  context.strokeStyle = context.fillStyle = colours.mark;
  context.lineWidth = 1.5 * scale;
  context.setLineDash([7 * scale, 4 * scale]);
  context.beginPath();
  context.moveTo(0, y);
  context.lineTo(width, y);
  context.stroke();
  context.setLineDash([]);
  context.font = `600 ${11 * scale}px system-ui, sans-serif`;
  const left = width - context.measureText(text).width - 6 * scale;
  const base = y > 18 * scale ? y - 5 * scale : y + 14 * scale;
  context.strokeStyle = colours.page;
  context.lineWidth = 4 * scale;
  context.strokeText(text, left, base);
  context.fillText(text, left, base);
}
