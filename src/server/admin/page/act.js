// The dialog that blocks, limits, allows or shadows a key, or resets its counter, and says first what will happen.

import { Refused, get, send } from "./api.js";
import { count, descriptor, duration } from "./format.js";

const $ = (id) => document.getElementById(id);
const dialog = $("act");
let target = null;
let done = () => {};

const action = () => dialog.querySelector("input[name=action]:checked").value;
const seconds = () => Number($("act-for").value);

/** What will happen, in a sentence or two. */
function effect() {
  const key = `${descriptor(target.descriptor)} in domain ${target.domain}`;
  const time = seconds() ? `for ${duration(seconds())}` : "until the override is removed";
  switch (action()) {
    case "block": return `Every request with ${key} is refused with 429 ${time}, on all replicas. Nothing is counted.`;
    case "limit": return `${key} may have ${count($("act-number").value)} requests per ${$("act-unit").value} ${time}, on all replicas, in place of the limit of its rule.`;
    case "allow": return `No request with ${key} is limited ${time}, on all replicas.`;
    case "shadow": return `${key} is counted and never refused ${time}, on all replicas.`;
    default: return `The counters of ${key} begin at zero, as if it had never been used, on all replicas that share the store.`;
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
  $("act-for-label").hidden = reset;
  $("act-effect").textContent = effect();
  $("act-confirm").textContent = label();
  $("act-confirm").className = action() === "block" ? "danger" : "primary";
  $("act-error").textContent = "";
}

/** What the counter holds now, where the service can say. */
async function showCounter(shown) {
  const query = new URLSearchParams({ domain: shown.domain, descriptor: descriptor(shown.descriptor) });
  try {
    const { limits } = await get(`api/v1/counters?${query}`);
    if (shown !== target) return;
    const texts = limits.map(({ used, remaining, resets_in_seconds: reset }) =>
      `${count(used)} used, ${count(remaining)} left${reset ? `, resets in ${duration(reset)}` : ""}`);
    $("act-counter").textContent = texts.length ? `Counter: ${texts.join("; ")}` : "";
  } catch {
    // The dialog is of use without it.
  }
}

/** Opens the dialog for a key: its domain, descriptor and rule. `changed` is called after a change. */
export function open(key, changed) {
  target = key;
  done = changed;
  $("act-key").textContent = descriptor(key.descriptor);
  $("act-rule").textContent = key.rule ? `rule ${key.rule}` : `domain ${key.domain}`;
  $("act-counter").textContent = "";
  dialog.querySelector("input[value=block]").checked = true;
  $("act-for").value = "3600";
  $("act-reason").value = "";
  refresh();
  dialog.showModal();
  showCounter(key);
}

async function confirm() {
  const reason = $("act-reason").value.trim();
  const body = { domain: target.domain, descriptor: target.descriptor };
  if (reason) body.reason = reason;
  if (action() === "reset") return send("POST", "api/v1/counters/reset", body);
  body.action = action();
  if (action() === "limit") {
    body.requests_per_unit = Number($("act-number").value);
    body.unit = $("act-unit").value;
  }
  if (seconds()) body.expires_at = new Date(Date.now() + seconds() * 1000).toISOString();
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
    $("act-error").textContent = error instanceof Refused ? error.message : `No answer: ${error.message}`;
  } finally {
    $("act-confirm").disabled = false;
  }
});
