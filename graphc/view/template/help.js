// Help: what keys and the pointer do, over the page.

const HELP = [
  [["←", "→", "↑", "↓"], "move"],
  [["+", "−"], "zoom; the wheel does so where the pointer is, with Shift time only, with Alt addresses only"],
  [["0"], "reset the zoom; again: the axes of all tabs"],
  [["f"], "fit the axes to this plan"],
  [["1", "…", "9"], "a tab; arrows on a tab turn to the next"],
  [["a"], "all plans side by side"],
  [["/"], "search by name, scope or op"],
  [["n", "p"], "next and previous match"],
  [["m"], "the peak, and its largest buffer"],
  [[",", "."], "what is live one node before, after"],
  [["Tab"], "through the neighbours of a value: Enter shows one, ↑ the first operand, ↓ the first reader"],
  [["t"], "time in nodes or in seconds"],
  [["d"], "dark or light colours"],
  [["Esc"], "clear the search and the selection"],
  [["?"], "show or close this help"],
];

const POINTER = "Hover for what lies there, click to select it, drag to move. A click on the curve lists what is live at that "
  + "node. The address of the page holds the tab, the node, the selected value and the zoom, and leads back to them.";

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
