// The URL of the page: its fragment stores the state of the view, so that a link opens the same view.

const WAIT = 200;  // milliseconds without a change before the URL is updated: browsers limit the rate of updates
let isDue = null;

// Returns the fragment for the current view; it omits settings that have their initial values.
function fragment() {
  const found = new URLSearchParams();
  if (plans.length > 1) found.set("plan", plan.label);
  if (!element("all").hidden) found.set("beside", "yes");
  if (moment !== null) found.set("node", moment);
  if (selected && selected.value >= 0) found.set("value", plan.values.name[selected.value]);
  else if (selected) found.set("workspace", selected.buffer);
  if (view.axis !== "node") found.set("time", view.axis);
  const { t0, t1, a0, a1 } = view;
  if (plans.length > 1 && isFitted !== content.fitted) found.set("axes", isFitted ? "own" : "all");
  if (!isWhole()) found.set("zoom", [t0, t1, a0, a1].join(" "));
  if (!isHostWhole()) found.set("host", hostAddresses().join(" "));  // with a host map
  return found.toString();
}

function writeAddress() {
  clearTimeout(isDue);
  isDue = setTimeout(() => {
    const found = fragment();
    if (found !== location.hash.slice(1)) history.replaceState(null, "", `#${found}`);
  }, WAIT);
}

// Shows the view that the fragment describes. Names that this page does not have are ignored.
function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const labels = plans.map(each => each.label), number = labels.indexOf(given.get("plan"));
  showPlan(number < 0 ? content.opened : number);
  if ((given.get("time") === "seconds") !== (view.axis === "seconds")) KEYS.t();
  const value = plan.values.name.indexOf(given.get("value")), buffer = plan.residents.findIndex(
    (values, at) => !values.length && given.get("workspace") === String(at));
  if (value >= 0) select({ buffer: plan.values.buffer[value], value });
  else select(buffer < 0 ? null : { buffer, value: -1 });
  const node = given.get("node");
  if (/^\d+$/.test(node ?? "")) setMoment(Number(node));
  isFitted = given.has("axes") ? given.get("axes") === "own" : content.fitted;
  const zoom = (given.get("zoom") ?? "").split(" ").map(Number);
  if (zoom.length === 4 && zoom.every(Number.isFinite) && zoom[0] < zoom[1] && zoom[2] < zoom[3]) {
    Object.assign(view, { t0: zoom[0], t1: zoom[1] });
    look(...zoom);
  } else if (isFitted) showThisPlan();
  else showWhole();
  readHost(given.get("host"));  // with a host map
  if (given.get("beside") === "yes" && plans.length > 1) showAll(true);
}
