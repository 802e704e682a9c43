// The neighbors of a selected value: two levels of operands above it, two levels of consumers below.

const BOX = { width: 70, height: 32, across: 6, down: 22, most: 4 };  // most: maximum number of boxes in a row

// The namespace of SVG is a URL. It is derived here, so that the page itself contains no URL.
const SVG = document.createRange().createContextualFragment("<svg></svg>").firstChild.namespaceURI;

function svg(tag, attributes, text = "") {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.textContent = text;
  return made;
}

// Returns the operands of a value's node: computed values first, since a node may have many inputs and states.
function operandsOf(value) {
  const found = plan.operands[plan.values.node[value]] ?? [], isGiven = each => plan.values.node[each] < 0;
  return [...found.filter(each => !isGiven(each)), ...found.filter(isGiven)];
}

// Returns the first result of each node that reads a result of the value's node (or an input or state `value`).
function readersOf(value) {
  const node = plan.values.node[value], all = node < 0 ? [value] : plan.results[node];
  return unique(all.flatMap(each => plan.readers[each]).sort((a, b) => a - b).map(step => plan.written[step]));
}

const unique = values => [...new Set(values)];

// Returns five rows of values, and the lines that connect values of adjacent rows.
function neighboursOf(value) {
  const above = operandsOf(value), below = readersOf(value);
  const rows = [unique(above.flatMap(operandsOf)), unique(above), [value], below, unique(below.flatMap(readersOf))];
  const kept = rows.map(row => (row.length > BOX.most ? row.slice(0, BOX.most - 1) : row));
  const reads = [[0, operandsOf], [1, operandsOf], [2, readersOf], [3, readersOf]];
  const lines = reads.flatMap(([row, next]) => kept[row].flatMap(from => kept[row + 1]
    .filter(to => (row < 2 ? next(to).includes(from) : next(from).includes(to))).map(to => [row, from, to])));
  return { rows, kept, lines };
}

function neighbours(value) {
  const { rows, kept, lines } = neighboursOf(value), width = BOX.most * (BOX.width + BOX.across);
  const pitch = BOX.height + BOX.down, left = new Map();
  kept.forEach((row, number) => {
    const boxes = row.length + (rows[number].length > row.length), begin = (width - boxes * (BOX.width + BOX.across)) / 2;
    row.forEach((each, at) => left.set(`${number} ${each}`, begin + at * (BOX.width + BOX.across) + BOX.across / 2));
  });
  const picture = svg("svg", { viewBox: `0 0 ${width} ${5 * pitch - BOX.down}`, class: "neighbours", role: "group",
    "aria-label": "operands above, consumers below" });
  for (const [row, from, to] of lines) {
    const [x1, x2] = [left.get(`${row} ${from}`), left.get(`${row + 1} ${to}`)].map(x => x + BOX.width / 2);
    picture.append(svg("line", { x1, x2, y1: row * pitch + BOX.height, y2: (row + 1) * pitch }));
  }
  kept.forEach((row, number) => {
    row.forEach(each => picture.append(neighbour(each, left.get(`${number} ${each}`), number * pitch, each === value)));
    const more = rows[number].length - row.length, last = left.get(`${number} ${row.at(-1)}`);
    if (more) picture.append(svg("text", { x: last + 1.5 * BOX.width, y: number * pitch + 20 }, `${more} more`));
  });
  return picture;
}

function neighbour(value, x, y, isSelected) {
  const name = plan.values.name[value], node = plan.values.node[value];
  const lines = node < 0 ? ["", ...name.split("/")].slice(-2) : [name, plan.texts[plan.nodes.op[node]]];
  const box = svg("g", { transform: `translate(${x} ${y})`, role: "button", tabindex: 0,
    "aria-label": `show ${plan.called(value)}`, ...(isSelected ? { "aria-current": "true" } : {}) });
  box.append(svg("title", {}, plan.called(value)), svg("rect", { width: BOX.width, height: BOX.height, rx: 3 }));
  lines.forEach((text, at) => {
    const cut = text.length > 11 ? `${text.slice(0, 10)}…` : text;
    box.append(svg("text", { x: BOX.width / 2, y: 13 + 13 * at }, cut));
  });
  box.addEventListener("click", () => walkTo(value));
  box.addEventListener("keydown", event => {
    const ways = { Enter: [value], " ": [value], ArrowUp: operandsOf(value), ArrowDown: readersOf(value) };
    if (!ways[event.key]) return;
    event.preventDefault();
    event.stopPropagation();
    if (ways[event.key].length) walkTo(ways[event.key][0]);
  });
  return box;
}

// Selects a neighbor, and moves the focus to it in the new graph of neighbors.
function walkTo(value) {
  goTo(plan.values.buffer[value], value);
  element("details").querySelector("[aria-current]").focus();
}
