// The dialog for all requests with a value: each of their descriptors, what refused it, and one exemption from all of it.

import { get, send } from "./api.js";
import { clock, count, descriptor, keyUrl, printable, target } from "./format.js";

const $ = (id) => document.getElementById(id);
const dialog = $("why");
let exemption = [];

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** A descriptor, its limits and their place, what refused it, and the override that decides it. */
function line(domain, one, isPlain) {
  const name = descriptor(one.descriptor);
  const shown = isPlain ? element("a", { href: keyUrl(domain, one.descriptor), textContent: name }) : name;
  const limits = one.rule ? one.limits.join(", ") || "unlimited" : "no rule";
  const place = one.file ? ` · ${one.file.split("/").at(-1)}:${one.line}` : "";
  const others = one.others ? ` · ${count(one.others)} requests with other values have it too` : "";
  const item = element("li", {}, shown, element("small", { textContent: printable(` ${limits}${place}${others}`) }));
  const { refused, override } = one;
  if (refused) item.append(element("div", { className: "over", textContent: `refused ${refused.count === 1 ? "once" : `${count(refused.count)} times`} since ${clock(refused.first)}: ${printable(refused.reason)}` }));
  if (override) {
    const more = [override.by && `by ${override.by}`, override.reason].filter(Boolean).join(" · ");
    item.append(element("div", {}, element("span", { className: `badge ${override.action}`, textContent: override.action }), element("small", { textContent: printable(` ${more}`) })));
  }
  return item;
}

function draw({ requests, more, exemption: targets, share_of_keys: share, key_values: values }) {
  exemption = targets;
  const isPlain = values === "plain";
  const times = (one) => (one.requests ? `${count(one.requests)} request${one.requests === 1 ? "" : "s"}, the last at ${clock(one.last)}` : `the last refusal at ${clock(one.last)}`);
  $("why-requests").replaceChildren(...requests.map((one) =>
    element("section", {},
      element("h3", { textContent: `${printable(one.domain)}: ${times(one)}` }),
      element("ul", {}, ...one.descriptors.map((each) => line(one.domain, each, isPlain))))));
  const notes = [
    requests.length ? "" : "No recorded request and no refusal has this value.",
    more ? `and ${count(more)} requests of other kinds` : "",
    share === null ? "Requests are not recorded: RECENT_REQUESTS_MAX_BYTES is 0." : "",
    share !== null && share < 1 ? `The requests of ${(share * 100).toPrecision(2)} % of the keys are recorded.` : "",
  ];
  $("why-notes").textContent = notes.filter(Boolean).join(" ");
  $("why-exempt").hidden = targets.length === 0;
  $("why-targets").textContent = `Exempts ${targets.map((one) => `${target(one)} in ${printable(one.domain)}`).join("; ")}.`;
}

const value = () => new URLSearchParams(location.hash.slice(1)).get("why") ?? "";

async function show() {
  const wanted = value();
  if (!wanted) return;
  $("why-value").textContent = printable(wanted);
  $("why-error").textContent = "";
  $("why-requests").replaceChildren();
  $("why-notes").textContent = "…";
  $("why-exempt").hidden = true;
  if (!dialog.open) dialog.showModal();
  try {
    draw(await get(`api/v1/why?${new URLSearchParams({ value: wanted })}`));
  } catch (error) {
    $("why-notes").textContent = "";
    $("why-error").textContent = error.message;
  }
}

dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("why-confirm").disabled = true;
  $("why-error").textContent = "";
  try {
    for (const one of exemption) {
      const reason = $("why-reason").value.trim();
      await send("POST", "api/v1/overrides", { ...one, action: "allow", for: $("why-for").value.trim().replaceAll(" ", ""), ...(reason ? { reason } : {}) });
    }
    await show();
  } catch (error) {
    $("why-error").textContent = error.message;
  } finally {
    $("why-confirm").disabled = false;
  }
});
$("why-close").addEventListener("click", () => dialog.close());
dialog.addEventListener("close", () => history.replaceState(null, "", location.pathname + location.search));
window.addEventListener("hashchange", show);
show();
