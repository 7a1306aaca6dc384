// The dialog that allows or shadows all requests of a domain, or changes its failure policy.

import { send, warned } from "./api.js";
import { duration, PLACES } from "./format.js";

const $ = (id) => document.getElementById(id);
const dialog = $("switch");
let kept = "";
let done = () => {};

const EFFECTS = {
  shadow: "requests are counted and none is rejected",
  allow: "no request is limited, and nothing is counted",
  error: "while the store fails, requests get an error, which Envoy's failure_mode_deny decides",
  "allow-failure": "while the store fails, requests are allowed",
  deny: "while the store fails, requests are rejected",
  local: "while the store fails, each replica counts on its own",
  share: "while the store fails, each replica counts on its own against its share of the limits",
};

function refresh() {
  $("switch-error").textContent = "";
  const isChosen = ["switch-domain", "switch-action", "switch-for"].every((id) => $(id).value);
  if (!isChosen) {
    $("switch-effect").textContent = "Choose a domain, a switch and how long it lasts.";
    return;
  }
  const seconds = Number($("switch-for").value);
  const time = seconds ? `for ${duration(seconds)}` : "until the switch is removed";
  const where = $("switch-here").checked ? "on this replica alone" : PLACES[kept] ?? "on this replica";
  const domain = $("switch-domain").value === "*" ? "all domains without a switch of their own" : `domain ${$("switch-domain").value}`;
  $("switch-effect").textContent = `In ${domain}, ${EFFECTS[$("switch-action").value]} ${time}, ${where}. Blocks stay in force.`;
}

/** Opens the dialog with these domains. `storage` is where overrides are stored; `changed` is called after a change. */
export function open(domains, storage, changed) {
  kept = storage;
  done = changed;
  $("switch-domain").replaceChildren(new Option("choose…", ""), ...domains.map((name) => new Option(name, name)), new Option("all domains", "*"));
  $("switch-action").value = "";
  $("switch-for").value = "";
  $("switch-reason").value = "";
  $("switch-here").checked = false;
  refresh();
  dialog.showModal();
}

async function confirm() {
  const chosen = $("switch-action").value;
  const body = { domain: $("switch-domain").value, reason: $("switch-reason").value.trim(), this_replica: $("switch-here").checked };
  if (chosen === "shadow" || chosen === "allow") body.action = chosen;
  else body.on_store_failure = chosen === "allow-failure" ? "allow" : chosen;
  // A duration, because the clock of this machine may differ from that of the service.
  if (Number($("switch-for").value)) body.for = `${$("switch-for").value}s`;
  return warned(`Switched domain ${body.domain}`, await send("POST", "api/v1/domains", body));
}

dialog.addEventListener("input", refresh);
$("switch-cancel").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("switch-confirm").disabled = true;
  try {
    const what = await confirm();
    dialog.close();
    done(what);
  } catch (error) {
    $("switch-error").textContent = error.message;
  } finally {
    $("switch-confirm").disabled = false;
  }
});
