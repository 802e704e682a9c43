// The capacity of the arena, a budget or the memory of the device, as a dashed line in the map and the curve.

const NEAR = 1.25;  // axes are extended to show a limit of at most this factor times their bytes

// Returns the end of an axis in bytes: `bytes`, or a limit that is not much larger.
function withLimit(bytes, of) {
  const near = of.map(each => each.limit?.bytes ?? 0).filter(limit => limit <= bytes * NEAR);
  return Math.max(bytes, ...near);
}

// Draws the limit on a canvas whose vertical axis has the bytes from `low` to `high`.
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
