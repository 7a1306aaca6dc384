// The dialog that blocks, limits, allows or shadows a key, or resets its counter, and describes the effect first.

import { get, send } from "./api.js";
import { count, descriptor, duration, limit, limits, PLACES, printable } from "./format.js";

/** What is typed for a change without an end. */
const NO_END = "no end";

const $ = (id) => document.getElementById(id);
const dialog = $("act");
let target = null;
/** The limits of the target that are in force. */
let known = [];
/** The name of the limit that the edited override changes. */
let edited = null;
let where = "";
let done = () => {};

/** The entry that the override names; null for the whole descriptor. */
const entry = () => (action() === "reset" || $("act-scope").value === "" ? null : { ...target.descriptor[Number($("act-scope").value)], value: $("act-value").value.trim() });

/** Puts the value of the key's entry into its field, where a network may replace it. */
function fillValue() {
  $("act-value").value = target.descriptor[Number($("act-scope").value)]?.value ?? "";
}
/** The chosen action; empty at first, because none is preselected. */
const action = () => dialog.querySelector("input[name=action]:checked")?.value ?? "";
const time = () => $("act-for").value.trim();
const lasting = () => (time() === NO_END ? "until the override is removed" : `for ${time() || "…"}`);

/** The name of the only limit that is changed; empty for all. */
const limitName = () => (changesLimits() ? $("act-name").value : "");
const changesLimits = () => ["limit", "scale"].includes(action());
const scale = () => `${$("act-scale").value || "…"}%`;

/** The calendar of a limit, as it is typed; empty without one. */
const calendar = () => $("act-calendar").value.trim();

/** A calendar as it is typed. */
const calendarText = (known) =>
  known ? [known.time_zone, known.week_start && `week_start=${known.week_start}`, known.anchor_day && `anchor_day=${known.anchor_day}`].filter(Boolean).join(",") : "";

/** The effect of the change. */
function effect() {
  const named = entry() ? `any descriptor with ${descriptor([entry()])}` : descriptor(target.descriptor);
  const key = `${named} in domain ${target.domain}`;
  const time = lasting();
  switch (action()) {
    case "": return "Choose an action.";
    case "block": return `Every request with ${key} is rejected with 429 ${time}, ${where}. Nothing is counted.`;
    case "limit": return `${entry() ? "Each of " : ""}${key} is limited to ${$("act-number").value === "" ? "…" : count($("act-number").value)} requests per ${$("act-unit").value}${calendar() && ` (${calendar()})`} ${time}, ${where}. ${limitName() ? `Other limits than ${limitName()} stay.` : "This replaces all limits of its rule."}`;
    case "scale": return `${limitName() ? `The limit ${limitName()}` : "Each limit"} of ${key} is ${scale()} of the rule's ${time}, ${where}, also after the rule changes.`;
    case "allow": return `No request with ${key} is limited ${time}, ${where}.`;
    case "shadow": return `Requests with ${key} are counted and never rejected ${time}, ${where}.`;
    default: return `The counters of ${key} are set to zero, on all replicas that share the store.`;
  }
}

function label() {
  const verbs = { "": "Change", block: "Block", limit: "Limit", scale: "Scale", allow: "Allow", shadow: "Shadow", reset: "Reset counter" };
  const isLasting = action() && action() !== "reset" && time() && time() !== NO_END;
  return verbs[action()] + (isLasting ? ` for ${time()}` : "");
}

function refresh() {
  const reset = action() === "reset";
  $("act-limit").hidden = action() !== "limit";
  // A hidden field is not validated.
  $("act-number").disabled = action() !== "limit";
  $("act-scale-label").hidden = action() !== "scale";
  $("act-scale").disabled = action() !== "scale";
  $("act-name-label").hidden = !changesLimits() || $("act-name").options.length < 2;
  $("act-scope-label").hidden = reset;
  $("act-value-label").hidden = !entry();
  $("act-for-label").hidden = reset;
  $("act-for").disabled = reset;
  $("act-effect").textContent = effect();
  $("act-confirm").textContent = label();
  $("act-confirm").className = action() === "block" ? "danger" : "primary";
  clearTimeout(previewing);
  previewing = setTimeout(preview, PAUSE);
}

/** The pause after typing before the service is asked what the change would do, in milliseconds. */
const PAUSE = 400;
let previewing = null;
let previewed = 0;

/** What the change would have made of the recorded requests. */
function would({ requests, newly_refused: more, newly_allowed: fewer }) {
  if (!requests) return "unknown: no request was recorded";
  if (!more && !fewer) return `none of ${count(requests)} recorded requests would be decided otherwise`;
  return `${count(more)} more and ${count(fewer)} fewer of ${count(requests)} recorded requests would be refused`;
}

/** Shows all limits before and after the change, and what it would have refused. */
async function preview() {
  previewed += 1;
  const shown = previewed;
  const isKnown = action() && action() !== "reset" && $("act-number").validity.valid && $("act-scale").validity.valid;
  let rows = [];
  if (isKnown) {
    try {
      const { before, after, forecast, warning } = await send("POST", "api/v1/override-preview", override());
      if (before && after) rows = [["Before", limits(before)], ["After", limits(after)]];
      if (forecast) rows.push(["Forecast", would(forecast)]);
      if (warning) rows.push(["Warning", printable(warning)]);
    } catch {
      // Confirming shows why.
    }
  }
  if (shown !== previewed) return;
  const element = (name, text) => Object.assign(document.createElement(name), { textContent: text });
  $("act-limits").replaceChildren(...rows.flatMap(([name, one]) => [element("dt", name), element("dd", one)]));
}

/** A bar of three parts: what is spent, held and left of a limit. */
function budget(one) {
  const bar = document.createElement("span");
  bar.className = "budget";
  bar.title = `${count(one.spent)} spent, ${count(one.held)} held, ${count(one.remaining)} left`;
  for (const part of ["spent", "held", "remaining"]) {
    const piece = document.createElement("span");
    piece.className = part;
    piece.style.flexGrow = one[part];
    bar.append(piece);
  }
  return bar;
}

/** Puts the limit in force into the fields: the named one, or the first. */
function fillLimit() {
  const one = known.find(({ name }) => name === $("act-name").value) ?? known[0];
  if (!one) return;
  $("act-number").value = one.requests_per_unit;
  $("act-unit").value = one.unit.toLowerCase();
}

/** Shows the usage of the key's limits. */
async function showCounter(shown) {
  const query = new URLSearchParams({ domain: shown.domain, descriptor: descriptor(shown.descriptor) });
  try {
    const { limits: all } = await get(`api/v1/counters?${query}`);
    if (shown !== target) return;
    const texts = all.map((one) => {
      const { used, remaining, resets_in_seconds: reset } = one;
      const held = one.held === null ? "" : `, ${count(one.held)} held`;
      const left = `${count(used)} ${one.held === null ? "used" : "spent"}${held}, ${count(remaining)} left`;
      if (one.calendar) return `${left} of ${limit(one)}, ends in ${duration(reset)}`;
      return reset ? `${left}, resets in ${duration(reset)}` : left;
    });
    known = all;
    const others = all.filter((one) => one.name && one.name !== edited);
    $("act-name").append(...others.map((one) => new Option(`only ${one.name}: ${limit(one)}`, one.name)));
    // The current limit, unless another one has been typed.
    if ($("act-number").value === "") fillLimit();
    refresh();
    $("act-counter").textContent = texts.length ? `Counter: ${texts.join("; ")}` : "";
    $("act-counter").append(...all.filter((one) => one.held !== null).map(budget));
  } catch {
    // The dialog works without it.
  }
}

/**
 * Opens the dialog for a key: its domain, descriptor and rule. `kept` is where overrides are stored; `changed` is
 * called after a change. `override` is one to edit, and `field` the first to type into.
 */
export function open(key, kept, changed, override, field) {
  target = key;
  known = [];
  edited = override?.name ?? null;
  $("act-name").replaceChildren(new Option("all", ""));
  if (edited) $("act-name").append(new Option(`only ${edited}`, edited));
  $("act-name").value = edited ?? "";
  $("act-scale").value = override?.scale?.replace("%", "") ?? "50";
  where = PLACES[kept] ?? "on this replica";
  done = changed;
  $("act-key").textContent = descriptor(key.descriptor);
  $("act-rule").textContent = key.rule ? `rule ${key.rule}` : `domain ${key.domain}`;
  $("act-counter").textContent = "";
  $("act-error").textContent = "";
  const scopes = key.descriptor.map((one, at) => new Option(`any descriptor with ${descriptor([one])}`, at));
  $("act-scope").replaceChildren(new Option(`this descriptor: ${descriptor(key.descriptor)}`, ""), ...scopes);
  for (const radio of dialog.querySelectorAll("input[name=action]")) radio.checked = radio.value === override?.action;
  // No override for a descriptor meets one without a rule.
  if (key.rule === null && !override) $("act-scope").value = "0";
  if (override?.entry) $("act-scope").value = key.descriptor.findIndex((one) => one.key === override.entry.key);
  fillValue();
  if (override?.entry) $("act-value").value = override.entry.value;
  $("act-number").value = override?.requests_per_unit ?? "";
  $("act-unit").value = override?.unit?.toLowerCase() ?? "minute";
  $("act-for").value = "";
  $("act-calendar").value = calendarText(override?.calendar);
  $("act-reason").value = override?.reason ?? "";
  refresh();
  dialog.showModal();
  if (field) $(field).focus();
  showCounter(key);
}

/** The target and the reason of a change. */
function subject() {
  const reason = $("act-reason").value.trim();
  return { domain: target.domain, ...(entry() ? { entry: entry() } : { descriptor: target.descriptor }), ...(reason && { reason }) };
}

/** The override that is chosen, without its end. */
function override() {
  const body = { ...subject(), action: action() };
  if (limitName()) body.name = limitName();
  if (action() === "scale") body.scale = scale();
  if (action() === "limit") {
    // An emptied field is not 0.
    if ($("act-number").value === "") throw new Error("the number of requests is missing");
    body.requests_per_unit = Number($("act-number").value);
    body.unit = $("act-unit").value;
    if (calendar()) body.calendar = calendar();
  }
  return body;
}

async function confirm() {
  if (action() === "reset") return send("POST", "api/v1/counters/reset", subject());
  const body = override();
  // A duration, because the clock of this machine may differ from that of the service.
  if (time() === "") throw new Error(`the duration is missing: 30m, 2h, 1d, or ${NO_END}`);
  if (time() !== NO_END) body.for = time().replaceAll(" ", "");
  return send("POST", "api/v1/overrides", body);
}

$("act-scope").addEventListener("input", fillValue);
$("act-name").addEventListener("input", fillLimit);
dialog.addEventListener("input", () => {
  $("act-error").textContent = "";
  refresh();
});
$("act-cancel").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("act-confirm").disabled = true;
  try {
    const reply = await confirm();
    dialog.close();
    done(label(), reply);
  } catch (error) {
    $("act-error").textContent = error instanceof TypeError ? `No response: ${error.message}` : error.message;
  } finally {
    $("act-confirm").disabled = false;
  }
});
