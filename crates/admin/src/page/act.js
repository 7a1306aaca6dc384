// The dialog that blocks, limits, allows or shadows a key, or resets its counter, and describes the effect first.

import { get, send } from "./api.js";
import { count, descriptor, duration, limit, PLACES } from "./format.js";

const $ = (id) => document.getElementById(id);
const dialog = $("act");
let target = null;
let where = "";
let done = () => {};

/** The entry that the override names; null for the whole descriptor. */
const entry = () => (action() === "reset" || $("act-scope").value === "" ? null : target.descriptor[Number($("act-scope").value)]);
const action = () => dialog.querySelector("input[name=action]:checked").value;
const seconds = () => Number($("act-for").value);

/** The calendar of a limit, as it is typed; empty without one. */
const calendar = () => $("act-calendar").value.trim();

/** The effect of the change. */
function effect() {
  const named = entry() ? `any descriptor with ${descriptor([entry()])}` : descriptor(target.descriptor);
  const key = `${named} in domain ${target.domain}`;
  const time = seconds() ? `for ${duration(seconds())}` : "until the override is removed";
  switch (action()) {
    case "block": return `Every request with ${key} is rejected with 429 ${time}, ${where}. Nothing is counted.`;
    case "limit": return `${entry() ? "Each of " : ""}${key} is limited to ${count($("act-number").value)} requests per ${$("act-unit").value}${calendar() && ` (${calendar()})`} ${time}, ${where}. This replaces the limit of its rule.`;
    case "allow": return `No request with ${key} is limited ${time}, ${where}.`;
    case "shadow": return `Requests with ${key} are counted and never rejected ${time}, ${where}.`;
    default: return `The counters of ${key} are set to zero, on all replicas that share the store.`;
  }
}

function label() {
  const time = seconds() ? ` for ${duration(seconds())}` : "";
  const verbs = { block: "Block", limit: "Limit", allow: "Allow", shadow: "Shadow" };
  return action() === "reset" ? "Reset counter" : verbs[action()] + time;
}

function refresh() {
  const reset = action() === "reset";
  $("act-limit").hidden = action() !== "limit";
  // A hidden field is not validated.
  $("act-number").disabled = action() !== "limit";
  $("act-scope-label").hidden = reset;
  $("act-for-label").hidden = reset;
  $("act-effect").textContent = effect();
  $("act-confirm").textContent = label();
  $("act-confirm").className = action() === "block" ? "danger" : "primary";
  $("act-error").textContent = "";
}

/** Shows the usage of the key's limits. */
async function showCounter(shown) {
  const query = new URLSearchParams({ domain: shown.domain, descriptor: descriptor(shown.descriptor) });
  try {
    const { limits } = await get(`api/v1/counters?${query}`);
    if (shown !== target) return;
    const texts = limits.map((one) => {
      const { used, remaining, resets_in_seconds: reset } = one;
      const left = `${count(used)} used, ${count(remaining)} left`;
      if (one.calendar) return `${left} of ${limit(one)}, ends in ${duration(reset)}`;
      return reset ? `${left}, resets in ${duration(reset)}` : left;
    });
    $("act-counter").textContent = texts.length ? `Counter: ${texts.join("; ")}` : "";
  } catch {
    // The dialog works without it.
  }
}

/**
 * Opens the dialog for a key: its domain, descriptor and rule. `kept` is where overrides are stored; `changed` is
 * called after a change.
 */
export function open(key, kept, changed) {
  target = key;
  where = PLACES[kept] ?? "on this replica";
  done = changed;
  $("act-key").textContent = descriptor(key.descriptor);
  $("act-rule").textContent = key.rule ? `rule ${key.rule}` : `domain ${key.domain}`;
  $("act-counter").textContent = "";
  const scopes = key.descriptor.map((one, at) => new Option(`any descriptor with ${descriptor([one])}`, at));
  $("act-scope").replaceChildren(new Option(`this descriptor: ${descriptor(key.descriptor)}`, ""), ...scopes);
  dialog.querySelector("input[value=block]").checked = true;
  $("act-for").value = "3600";
  $("act-calendar").value = "";
  $("act-reason").value = "";
  refresh();
  dialog.showModal();
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
  if (seconds()) body.for = `${seconds()}s`;
  return send("POST", "api/v1/overrides", body);
}

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
