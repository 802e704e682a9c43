// The help dialog: the keys and the pointer actions of the page.

const HELP = [
  [["←", "→", "↑", "↓"], "move the view"],
  [["+", "−"], "zoom; the wheel zooms at the pointer, with Shift only in time, with Alt only in addresses"],
  [["0"], "reset the zoom; press again for axes that fit the plans of all tabs"],
  [["f"], "fit the axes to this plan"],
  [["1", "…", "9"], "show that tab; on a tab, arrow keys show the next or previous one"],
  [["a"], "show all plans side by side"],
  [["/"], "search by name, scope or op"],
  [["n", "p"], "go to the next or previous match"],
  [["m"], "go to the peak and select its largest buffer"],
  [[",", "."], "list the live buffers at the previous or next node"],
  [["Tab"], "move through the neighbors of a value: Enter selects one, ↑ its first operand, ↓ its first consumer"],
  [["t"], "switch the time axis between nodes and seconds"],
  [["d"], "switch between dark and light colors"],
  [["Esc"], "clear the search and the selection"],
  [["?"], "show or close this help"],
];

const POINTER = "Hover over a rectangle to see its value, click to select the value, drag to move the view. Click on the "
  + "curve to list the live buffers at that node. The URL of the page contains the tab, the node, the selected value and "
  + "the zoom, so a link to it opens the same view.";

function fillHelp() {
  element("help-keys").replaceChildren(...HELP.flatMap(([keys, does]) => {
    const term = make("dt");
    term.append(...keys.map(key => make(key === "…" ? "span" : "kbd", key)));
    return [term, make("dd", does)];
  }));
  element("help-pointer").textContent = POINTER;
}

function showHelp() {
  const help = element("help");
  if (help.open) help.close();
  else help.showModal();
}
