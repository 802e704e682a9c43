// Live bytes by scope, as a collapsible tree of layers.

const opened = new Set();  // paths of the expanded scopes; they stay expanded when another node is shown

// Returns the scope of the value that a buffer contains at a step. A state has the scope of the node that updates it.
function scopeOf(buffer, step) {
  const value = plan.holder(buffer, step), text = node => plan.texts[plan.nodes.scope[node]] ?? "";
  if (value < 0) return text(plan.buffers.first[buffer]);
  const name = plan.values.name[value];
  if (!name.startsWith("@")) return text(plan.values.node[value]);
  const updater = plan.updaters.get(value);
  return updater === undefined ? name.slice(1, Math.max(1, name.lastIndexOf("/"))) : text(updater);
}

// Returns the live bytes at a step by scope, as a tree: { bytes, own, inner: name → subtree }.
function scopesAt(step) {
  const root = { bytes: 0, own: 0, inner: new Map() };
  plan.alive(step, step + 1, buffer => {
    const size = plan.sizeOf(buffer);
    let at = root;
    at.bytes += size;
    for (const part of scopeOf(buffer, step).split("/").filter(Boolean)) {
      if (!at.inner.has(part)) at.inner.set(part, { bytes: 0, own: 0, inner: new Map() });
      at = at.inner.get(part);
      at.bytes += size;
    }
    at.own += size;
  });
  return root;
}

function fillScopes() {
  const step = moment ?? plan.peak_step;
  element("scopes-title").textContent = `scopes: live at node ${step}`;
  element("scopes").replaceChildren(...scopeRows(scopesAt(step), ""));
}

function scopeRows(scope, path) {
  const inner = [...scope.inner].sort((a, b) => b[1].bytes - a[1].bytes || (a[0] < b[0] ? -1 : 1));
  const rows = inner.map(([name, each]) => scopeRow(name, each, `${path}/${name}`));
  if (scope.own) rows.push(sizeRow("div", path ? "this scope itself" : "of no scope", scope.own));
  return rows;
}

// Creates the row of a scope. Its nested rows are created when it is expanded: a network may have thousands.
function scopeRow(name, scope, path) {
  if (!scope.inner.size) return sizeRow("div", name, scope.bytes);
  const row = make("details");
  row.append(sizeRow("summary", name, scope.bytes));
  const fill = () => {
    if (row.open && row.children.length === 1) row.append(...scopeRows(scope, path));
    opened[row.open ? "add" : "delete"](path);
  };
  row.open = opened.has(path);
  if (row.open) fill();
  row.addEventListener("toggle", fill);
  return row;
}

function sizeRow(tag, name, size) {
  const row = make(tag);
  row.append(make("span", name), make("span", formatBytes(size)));
  return row;
}
