// The dialog that blocks, limits, allows or shadows a key, or resets its counter, and describes the effect first.

import { get, send } from "./api.js";
import { count, descriptor, duration, limit, PLACES } from "./format.js";

/** What is typed for a change without an end. */
const NO_END = "no end";

const $ = (id) => document.getElementById(id);
const dialog = $("act");
let target = null;
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
    case "limit": return `${entry() ? "Each of " : ""}${key} is limited to ${$("act-number").value === "" ? "…" : count($("act-number").value)} requests per ${$("act-unit").value}${calendar() && ` (${calendar()})`} ${time}, ${where}. This replaces the limit of its rule.`;
    case "allow": return `No request with ${key} is limited ${time}, ${where}.`;
    case "shadow": return `Requests with ${key} are counted and never rejected ${time}, ${where}.`;
    default: return `The counters of ${key} are set to zero, on all replicas that share the store.`;
  }
}

function label() {
  const verbs = { "": "Change", block: "Block", limit: "Limit", allow: "Allow", shadow: "Shadow", reset: "Reset counter" };
  const isLasting = action() && action() !== "reset" && time() && time() !== NO_END;
  return verbs[action()] + (isLasting ? ` for ${time()}` : "");
}

function refresh() {
  const reset = action() === "reset";
  $("act-limit").hidden = action() !== "limit";
  // A hidden field is not validated.
  $("act-number").disabled = action() !== "limit";
  $("act-scope-label").hidden = reset;
  $("act-value-label").hidden = !entry();
  $("act-for-label").hidden = reset;
  $("act-for").disabled = reset;
  $("act-effect").textContent = effect();
  $("act-confirm").textContent = label();
  $("act-confirm").className = action() === "block" ? "danger" : "primary";
  $("act-error").textContent = "";
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

/** Shows the usage of the key's limits. */
async function showCounter(shown) {
  const query = new URLSearchParams({ domain: shown.domain, descriptor: descriptor(shown.descriptor) });
  try {
    const { limits } = await get(`api/v1/counters?${query}`);
    if (shown !== target) return;
    const texts = limits.map((one) => {
      const { used, remaining, resets_in_seconds: reset } = one;
      const held = one.held === null ? "" : `, ${count(one.held)} held`;
      const left = `${count(used)} ${one.held === null ? "used" : "spent"}${held}, ${count(remaining)} left`;
      if (one.calendar) return `${left} of ${limit(one)}, ends in ${duration(reset)}`;
      return reset ? `${left}, resets in ${duration(reset)}` : left;
    });
    const [first] = limits;
    // The current limit, unless another one has been typed.
    if (first && $("act-number").value === "") {
      $("act-number").value = first.requests_per_unit;
      $("act-unit").value = first.unit.toLowerCase();
      refresh();
    }
    $("act-counter").textContent = texts.length ? `Counter: ${texts.join("; ")}` : "";
    $("act-counter").append(...limits.filter((one) => one.held !== null).map(budget));
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
  where = PLACES[kept] ?? "on this replica";
  done = changed;
  $("act-key").textContent = descriptor(key.descriptor);
  $("act-rule").textContent = key.rule ? `rule ${key.rule}` : `domain ${key.domain}`;
  $("act-counter").textContent = "";
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

async function confirm() {
  const reason = $("act-reason").value.trim();
  const body = { domain: target.domain };
  if (entry()) body.entry = entry();
  else body.descriptor = target.descriptor;
  if (reason) body.reason = reason;
  if (action() === "reset") return send("POST", "api/v1/counters/reset", body);
  body.action = action();
  if (action() === "limit") {
    // An emptied field is not 0.
    if ($("act-number").value === "") throw new Error("the number of requests is missing");
    body.requests_per_unit = Number($("act-number").value);
    body.unit = $("act-unit").value;
    if (calendar()) body.calendar = calendar();
  }
  // A duration, because the clock of this machine may differ from that of the service.
  if (time() === "") throw new Error(`the duration is missing: 30m, 2h, 1d, or ${NO_END}`);
  if (time() !== NO_END) body.for = time().replaceAll(" ", "");
  return send("POST", "api/v1/overrides", body);
}

$("act-scope").addEventListener("input", fillValue);
dialog.addEventListener("input", refresh);
$("act-cancel").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("act-confirm").disabled = true;
  try {
    await confirm();
    dialog.close();
    done(label());
  } catch (error) {
    $("act-error").textContent = error instanceof TypeError ? `No response: ${error.message}` : error.message;
  } finally {
    $("act-confirm").disabled = false;
  }
});
