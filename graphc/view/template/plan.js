// One plan: columns of numbers, which buffers are alive when, and which values they hold.

const BLOCK = 64;  // buffers whose lifetimes are skipped together

// The JSON that the page holds compressed.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

class Plan {
  constructor(model, content) {
    Object.assign(this, model);
    this.content = content;
    this.steps = Math.max(1, model.nodes.op.length);
    const nodes = Float64Array.from({ length: this.steps + 1 }, (_, step) => step);
    this.edges = { node: nodes, seconds: this.addUpSeconds() };
    this.unpackReaders();
    this.findResidents();
    this.findRelations();
    this.findExchanges();
    this.findNeeds();
    this.findSpans();
    this.findPasses();
    this.indexLifetimes();
    this.addUpKinds();
  }

  // When each step begins by the clock, and when the last one ends.
  addUpSeconds() {
    const edges = new Float64Array(this.steps + 1);
    for (let step = 0; step < this.steps; step++) edges[step + 1] = edges[step] + (this.nodes.seconds[step] || 0);
    return edges;
  }

  // Of each exchange with other ranks when it begins and ends, on both axes: with its node, where the
  // link is free. That its seconds have been rounded apart from those of nodes moves it to neither side.
  findExchanges() {
    const { node, begin, seconds } = this.exchanges, ends = { node: this.steps, seconds: this.edges.seconds[this.steps] };
    const found = node.map((step, at) => {
      const reached = this.edges.seconds[step], isLater = begin[at] > reached * 1.001;
      const first = isLater ? begin[at] : reached;
      return [first, first + seconds[at], isLater];
    });
    const onNodes = time => this.convert(Math.min(time, ends.seconds), "seconds", "node", ends);
    this.exchanged = {
      seconds: found,
      node: found.map(([first, last, isLater], at) => [
        isLater ? Math.max(node[at], onNodes(first)) : node[at], Math.max(node[at] + 1, onNodes(last)),
      ]),
    };
  }

  // The exchange at a time of an axis, or -1.
  exchangeAt(axis, time) {
    return this.exchanged[axis].findLastIndex(([first, last]) => first <= time && time < last);
  }

  unpackReaders() {
    const { reader_counts: counts, readers } = this.values;
    let start = 0;
    this.readers = counts.map(count => readers.slice(start, start += count));
  }

  findResidents() {
    this.residents = this.buffers.offset.map(() => []);
    this.values.buffer.forEach((buffer, value) => this.residents[buffer].push(value));
  }

  // Of each node the first value it writes, all of them, and its operands; of each value its recomputed
  // copies and its views; of each state the node that updates it.
  findRelations() {
    const { node, over, copy_of: copies } = this.values;
    this.written = new Int32Array(this.steps).fill(-1);
    this.copies = new Map();
    this.views = new Map();
    this.updaters = new Map();
    this.results = Array.from({ length: this.steps }, () => []);
    this.operands = Array.from({ length: this.steps }, () => []);
    const add = (map, key, value) => map.set(key, [...(map.get(key) ?? []), value]);
    node.forEach((step, value) => {
      if (step >= 0 && this.written[step] < 0) this.written[step] = value;
      if (step >= 0) this.results[step].push(value);
      for (const reader of this.readers[value]) this.operands[reader].push(value);
      if (step >= 0 && this.how(value) === "state" && over[value] >= 0) this.updaters.set(over[value], step);
      if (copies[value] >= 0) add(this.copies, copies[value], value);
      if (this.how(value) === "view") add(this.views, over[value], value);
    });
  }

  // Of each value the step until which its bytes are needed: by its own readers, by those of its
  // views, and by those of what it is a part of. Views and wholes come after it, so one turn does.
  findNeeds() {
    const { node, over, name } = this.values, results = new Set(Object.values(this.outputs));
    this.needed = node.map((step, value) => {
      if (name[value].startsWith("@") || this.how(value) === "state" || results.has(name[value])) return this.steps;
      return (this.readers[value].at(-1) ?? Math.max(0, step)) + 1;
    });
    for (let value = node.length - 1; value >= 0; value--) {
      const how = this.how(value), other = over[value];
      if (how === "part") this.needed[value] = Math.max(this.needed[value], this.needed[other]);
      if (how === "view") this.needed[other] = Math.max(this.needed[other], this.needed[value]);
    }
  }

  // Of each buffer the nodes [first, last) for which it is of one kind, as [first, last, kind].
  findSpans() {
    const { first, last, kind, turns } = this.buffers;
    this.spans = first.map((begin, buffer) => {
      const starts = [[begin, kind[buffer]], ...(turns[buffer] ?? [])];
      return starts.map(([start, of], at) => [start, starts[at + 1]?.[0] ?? last[buffer], of]);
    });
  }

  // Runs of nodes of the forward and the backward pass, then those of recomputed nodes, as [first, last, pass].
  // Updates belong to the pass in which they run: those of running statistics to the forward pass.
  findPasses() {
    const phases = this.nodes.phase.map(phase => this.content.phases[phase]);
    const runs = nameOf => phases.reduce((found, phase, step) => {
      const before = found.at(-1)?.[2], pass = nameOf(phase, before);
      if (before === pass) found.at(-1)[1] = step + 1; else found.push([step, step + 1, pass]);
      return found;
    }, []);
    const recomputed = runs(phase => (phase === "mirror" ? "recomputed" : ""));
    this.passes = [
      ...runs((phase, before) => (phase === "update" && before) || (phase === "forward" ? phase : "backward")),
      ...recomputed.filter(([, , pass]) => pass),
    ];
  }

  // The kind of the bytes that a buffer holds at a step.
  kindAt(buffer, step) {
    return this.spans[buffer].findLast(([begin], at) => begin <= step || !at)[2];
  }

  // The kind of a buffer when a value has been written into it.
  kindOf(buffer, value) {
    return this.kindAt(buffer, value < 0 ? 0 : this.values.node[value]);
  }

  // How a value gets its bytes.
  how(value) {
    return this.content.hows[this.values.how[value]];
  }

  // What a value is a part of, or -1.
  whole(value) {
    return this.how(value) === "part" ? this.values.over[value] : -1;
  }

  // Buffers in order of `first`; of each block of them the latest `last`.
  indexLifetimes() {
    const { first, last } = this.buffers;
    this.order = Uint32Array.from(first.keys()).sort((a, b) => first[a] - first[b] || a - b);
    this.latest = new Float64Array(Math.ceil(this.order.length / BLOCK));
    this.order.forEach((buffer, rank) => {
      const block = Math.floor(rank / BLOCK);
      this.latest[block] = Math.max(this.latest[block], last[buffer]);
    });
  }

  // What a buffer counts for in live bytes: rounded up.
  sizeOf(buffer) {
    return Math.ceil(this.buffers.bytes[buffer] / this.alignment) * this.alignment;
  }

  // Live bytes of each kind at each step, as the plan counts them.
  addUpKinds() {
    this.liveByKind = this.content.kinds.map(() => new Float64Array(this.steps + 1));
    this.spans.forEach((spans, buffer) => {
      const size = this.sizeOf(buffer);
      for (const [first, last, kind] of spans) {
        this.liveByKind[kind][first] += size;
        this.liveByKind[kind][last] -= size;
      }
    });
    for (const live of this.liveByKind) for (let step = 1; step <= this.steps; step++) live[step] += live[step - 1];
  }

  // Calls `use` with each buffer that is alive at some step of [begin, end).
  alive(begin, end, use) {
    const { first, last } = this.buffers;
    for (let block = 0; block < this.latest.length; block++) {
      const start = block * BLOCK;
      if (first[this.order[start]] >= end) return;
      if (this.latest[block] <= begin) continue;
      const stop = Math.min(start + BLOCK, this.order.length);
      for (let rank = start; rank < stop; rank++) {
        const buffer = this.order[rank];
        if (first[buffer] < end && last[buffer] > begin) use(buffer);
      }
    }
  }

  // The largest buffers that are alive at a step.
  largestAt(step, count) {
    const { bytes } = this.buffers, found = [];
    this.alive(step, step + 1, buffer => found.push(buffer));
    return found.sort((a, b) => bytes[b] - bytes[a] || a - b).slice(0, count);
  }

  // The step that runs at a time of an axis.
  stepAt(axis, time) {
    const edges = this.edges[axis];
    let low = 0, high = this.steps - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (edges[middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  }

  // A time of one axis on the other: the same step, and the same fraction of it. `spans` are the
  // ends of both axes, which may be those of longer plans.
  convert(time, from, to, spans) {
    const before = this.edges[from], after = this.edges[to], end = before[this.steps];
    if (time >= end) {
      const beyond = spans[from] > end ? (time - end) / (spans[from] - end) : 0;
      return after[this.steps] + beyond * (spans[to] - after[this.steps]);
    }
    const step = this.stepAt(from, time);
    const fraction = (time - before[step]) / (before[step + 1] - before[step]);
    return after[step] + fraction * (after[step + 1] - after[step]);
  }

  // The buffer at a step and an address, or -1.
  bufferAt(step, address, shown) {
    const { offset, bytes } = this.buffers;
    let found = -1;
    this.alive(step, step + 1, buffer => {
      const isThere = offset[buffer] <= address && address < offset[buffer] + bytes[buffer];
      if (isThere && shown[this.kindAt(buffer, step)]) found = buffer;
    });
    return found;
  }

  // Whether one of a value's elements has that byte of its buffer.
  holds(value, place) {
    const { offset, types, type, strides } = this.values, [, shape, , size] = types[type[value]];
    let rest = place - offset[value];
    if (rest < 0 || !strides[value]) return rest >= 0 && rest < size;
    const steps = strides[value].map((stride, axis) => [stride, shape[axis]]).filter(([stride]) => stride > 0);
    for (const [stride, extent] of steps.sort((a, b) => b[0] - a[0])) {
      rest -= Math.min(Math.floor(rest / stride), extent - 1) * stride;
    }
    return rest < size / shape.reduce((a, b) => a * b, 1);
  }

  // The value whose bytes a buffer holds at a step: the one written last, at an address where one is
  // given; -1 for a workspace or slot. Parts of a concatenation share a buffer before it is complete.
  valueAt(buffer, step, address = null) {
    const { node } = this.values;
    const written = this.residents[buffer].filter(value => node[value] <= step);
    const place = address - this.buffers.offset[buffer];
    const there = address === null ? [] : written.filter(value => this.holds(value, place));
    let found = -1;
    for (const value of there.length ? there : written) {
      if (found < 0 || this.how(value) !== "view" && node[value] >= node[found]) found = value;
    }
    return found;
  }

  // What a buffer is listed as at a step: a state's bytes are the state's, updated or not.
  holder(buffer, step) {
    const first = this.residents[buffer][0];
    return this.content.kinds[this.buffers.kind[buffer]] === "state" ? first : this.valueAt(buffer, step);
  }

  // Scope and op of a node; a plan without nodes has a step all the same.
  nodeLabel(step) {
    if (step >= this.nodes.op.length) return "start";
    const scope = this.texts[this.nodes.scope[step]], op = this.texts[this.nodes.op[step]];
    return scope ? `${scope}/${op}` : op;
  }

  origin(value) {
    return this.values.node[value] >= 0 ? this.nodeLabel(this.values.node[value]) : "";
  }

  // A value's name, with the scope and op that it comes from, as in the printout and in `explain`.
  called(value) {
    const origin = this.origin(value), name = this.values.name[value];
    return origin ? `${name} (${origin})` : name;
  }

  // What a buffer is called that holds a value, or is a slot or workspace, whose value is -1.
  nameOf(buffer, value) {
    const slot = this.buffers.slots?.[buffer];
    if (slot !== undefined) return `slot of ${slot}`;
    return value < 0 ? `workspace of ${this.nodeLabel(this.buffers.first[buffer])}` : this.called(value);
  }

  // Values with a name, an origin or the name of an output that contains the text: first what nodes compute, in order.
  search(text) {
    const wanted = text.trim().toLowerCase();
    if (!wanted) return [];
    this.searched ??= this.values.name.map((name, value) => {
      const results = Object.keys(this.outputs).filter(output => this.outputs[output] === name);
      return [name, this.origin(value), ...results].join(" ").toLowerCase();
    });
    const found = [];
    this.searched.forEach((words, value) => { if (words.includes(wanted)) found.push(value); });
    const given = found.filter(value => this.values.node[value] < 0);
    return found.slice(given.length).concat(given);  // inputs and states are the first values
  }

  isOutput(value) {
    return Object.values(this.outputs).includes(this.values.name[value]);
  }

  why(value) {
    const { over, copy_of: copies, name } = this.values;
    const other = over[value] < 0 ? "" : name[over[value]];
    const told = {
      new: "a place that nothing used before",
      reuse: "a place whose earlier tenants are dead",
      over: `over ${other}, which is read here for the last time`,
      view: `a view of ${other}: no bytes of its own`,
      part: `computed straight into its place in ${other}`,
      state: other ? `where the state ${other} lies` : "in the region of states",
    }[this.how(value)];
    const node = this.values.node[value];
    if (node < 0 || this.content.phases[this.nodes.phase[node]] !== "mirror") return told;
    return `recomputed${copies[value] < 0 ? "" : `, a copy of ${name[copies[value]]}`}; ${told}`;
  }
}
