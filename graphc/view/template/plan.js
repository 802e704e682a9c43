// One plan: columns of numbers, the live ranges of buffers, and the values in each buffer.

const BLOCK = 64;  // number of buffers that a search by lifetime skips together

// Decompresses and parses the JSON that the page contains.
async function unpack(text) {
  const bytes = Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

class Plan {
  constructor(model, content) {
    Object.assign(this, model);
    this.content = content;
    this.isHost = false;  // with a host map
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
    addHost(this);  // with a host map
  }

  // Returns the start of each step and the end of the last one, in seconds of the clock.
  addUpSeconds() {
    const edges = new Float64Array(this.steps + 1);
    for (let step = 0; step < this.steps; step++) edges[step + 1] = edges[step] + (this.nodes.seconds[step] || 0);
    return edges;
  }

  // Computes the begin and the end of each collective on both axes. A collective begins with its node if
  // the link is free then. Its seconds are rounded separately from those of nodes, so small differences are ignored.
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

  // Returns the collective at a time of an axis, or -1.
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

  // Finds the first result, all results and the operands of each node, the recomputed copies and the views
  // of each value, and the node that updates each state.
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

  // Computes for each value the end of its live range: the last use of the value, of its views, and of the
  // concatenation that contains it. Views and concatenations follow the value, so one pass in reverse suffices.
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

  // Computes the spans of each buffer, as [first, last, kind]: it is of one kind at nodes [first, last).
  findSpans() {
    const { first, last, kind, turns } = this.buffers;
    this.spans = first.map((begin, buffer) => {
      const starts = [[begin, kind[buffer]], ...(turns[buffer] ?? [])];
      return starts.map(([start, of], at) => [start, starts[at + 1]?.[0] ?? last[buffer], of]);
    });
  }

  // Finds ranges of nodes of the forward and the backward pass, then of recomputed nodes, as [first, last, pass].
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

  // Returns the kind of the value that a buffer contains at a step.
  kindAt(buffer, step) {
    return this.spans[buffer].findLast(([begin], at) => begin <= step || !at)[2];
  }

  // Returns the kind of a buffer just after a value has been written into it.
  kindOf(buffer, value) {
    return this.kindAt(buffer, value < 0 ? 0 : this.values.node[value]);
  }

  // Returns the origin of a value's bytes, such as "new" or "view".
  how(value) {
    return this.content.hows[this.values.how[value]];
  }

  // Returns the concatenation that contains a value, or -1.
  whole(value) {
    return this.how(value) === "part" ? this.values.over[value] : -1;
  }

  // Sorts the buffers by `first`, and finds the maximum `last` of each block of them.
  indexLifetimes() {
    const { first, last } = this.buffers;
    this.order = Uint32Array.from(first.keys()).sort((a, b) => first[a] - first[b] || a - b);
    this.order = this.order.filter(buffer => isOnHost(this, buffer) === this.isHost);  // with a host map
    this.latest = new Float64Array(Math.ceil(this.order.length / BLOCK));
    this.order.forEach((buffer, rank) => {
      const block = Math.floor(rank / BLOCK);
      this.latest[block] = Math.max(this.latest[block], last[buffer]);
    });
  }

  // Returns the size of a buffer rounded up to the alignment, as counted in live bytes.
  sizeOf(buffer) {
    return Math.ceil(this.buffers.bytes[buffer] / this.alignment) * this.alignment;
  }

  // Computes the live bytes of each kind at each step, rounded up as in the plan.
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

  // Calls `use` with each buffer that is live at some step of [begin, end).
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

  // Returns the largest buffers that are live at a step.
  largestAt(step, count) {
    const { bytes } = this.buffers, found = [];
    this.alive(step, step + 1, buffer => found.push(buffer));
    return found.sort((a, b) => bytes[b] - bytes[a] || a - b).slice(0, count);
  }

  // Returns the step that runs at a time of an axis.
  stepAt(axis, time) {
    const edges = this.edges[axis];
    let low = 0, high = this.steps - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (edges[middle] <= time) low = middle; else high = middle - 1;
    }
    return low;
  }

  // Converts a time from one axis to the other: to the same fraction of the same step. `spans` has the
  // ends of both axes, which may be those of a longer plan.
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

  // Returns the buffer at a step and an address, or -1.
  bufferAt(step, address, shown) {
    const { offset, bytes } = this.buffers;
    let found = -1;
    this.alive(step, step + 1, buffer => {
      const isThere = offset[buffer] <= address && address < offset[buffer] + bytes[buffer];
      if (isThere && shown[this.kindAt(buffer, step)]) found = buffer;
    });
    return found;
  }

  // Returns true if an element of a value contains byte `place` of its buffer.
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

  // Returns the value that a buffer contains at a step: the one written last or, if `address` is given, the
  // one written there last; -1 for a workspace or slot. Parts of a concatenation share its buffer.
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

  // Returns the value by which a buffer is listed at a step. A state's buffer is listed by the state, even after its update.
  holder(buffer, step) {
    const first = this.residents[buffer][0];
    return this.content.kinds[this.buffers.kind[buffer]] === "state" ? first : this.valueAt(buffer, step);
  }

  // Returns the scope and op of a node. A plan without nodes has one step, "start".
  nodeLabel(step) {
    if (step >= this.nodes.op.length) return "start";
    const scope = this.texts[this.nodes.scope[step]], op = this.texts[this.nodes.op[step]];
    return scope ? `${scope}/${op}` : op;
  }

  origin(value) {
    return this.values.node[value] >= 0 ? this.nodeLabel(this.values.node[value]) : "";
  }

  // Returns the name of a value with the scope and op of its producer, as in the printout and in `explain`.
  called(value) {
    const origin = this.origin(value), name = this.values.name[value];
    return origin ? `${name} (${origin})` : name;
  }

  // Returns the name of a buffer: that of its value, or of the owner of a slot or workspace (value -1).
  nameOf(buffer, value) {
    const slot = this.buffers.slots?.[buffer];
    if (slot !== undefined) return `slot of ${slot}`;
    return value < 0 ? `workspace of ${this.nodeLabel(this.buffers.first[buffer])}` : this.called(value);
  }

  // Returns the values whose name, scope and op, or output name contains the text; inputs and states come last.
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
      new: "in bytes that no value used before",
      reuse: "in bytes whose earlier values are dead",
      over: `in place of ${other}, whose last use is this node`,
      view: `a view of ${other}, without bytes of its own`,
      part: `computed in place as a part of ${other}`,
      state: other ? `at the address of the state ${other}` : "in the region of states",
    }[this.how(value)];
    if (isCopied(this, value)) return `${copyWords(this, value)}; ${told}`;  // with a host map
    const node = this.values.node[value];
    if (node < 0 || this.content.phases[this.nodes.phase[node]] !== "mirror") return told;
    return `recomputed${copies[value] < 0 ? "" : `, a copy of ${name[copies[value]]}`}; ${told}`;
  }
}
