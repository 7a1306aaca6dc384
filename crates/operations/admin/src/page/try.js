// The dialog that tries rules on the last recorded requests.

import { get, send } from "./api.js";
import { clock, count, printable } from "./format.js";
import { domains } from "./search.js";

const $ = (id) => document.getElementById(id);
const dialog = $("try");

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function table(title, heads, rows) {
  if (rows.length === 0) return [];
  const cell = (text, at) => element("td", { textContent: text, className: at === 0 ? "" : "n" });
  const head = heads.map((text, at) => element("th", { scope: "col", textContent: text, className: at === 0 ? "" : "n" }));
  const body = rows.map((cells) => element("tr", {}, ...cells.map(cell)));
  return [
    element("h3", { textContent: title }),
    element("table", {}, element("thead", {}, element("tr", {}, ...head)), element("tbody", {}, ...body)),
  ];
}

const share = (part, whole) => (whole > 0 ? ` (${((100 * part) / whole).toFixed(1)} %)` : "");

/** The keys whose requests change. */
const keys = (title, all) =>
  table(title, ["Key", "Requests", "First", "Last"], all.map((one) => [printable(`${one.rule} ${one.descriptor}`), count(one.requests), clock(one.first), clock(one.last)]));

function recorded({ recorded: { share_of_keys: part }, report }) {
  if (report.requests === 0) return "No request of this domain was recorded.";
  const sample = part < 1 ? ` Recorded were the requests of ${(part * 100).toPrecision(2)} % of the keys.` : "";
  return `${count(report.requests)} requests from ${clock(report.from)} to ${clock(report.to)}.${sample} Counters began at 0.`;
}

function show(reply) {
  const { report, refused_now: before } = reply;
  const rules = report.rules.filter((rule) => rule.newly_refused + rule.newly_allowed > 0);
  $("try-result").replaceChildren(
    element("p", { textContent: recorded(reply) }),
    ...table("Requests", ["", "Now", "With these rules"], [
      ["Admitted", count(report.requests - before), count(report.admitted)],
      ["Refused", count(before) + share(before, report.requests), count(report.refused) + share(report.refused, report.requests)],
      ["Newly refused", "", count(report.newly_refused)],
      ["Newly allowed", "", count(report.newly_allowed)],
    ]),
    ...table("Rules", ["Rule", "Newly refused", "Newly allowed"], rules.map((rule) => [printable(rule.rule), count(rule.newly_refused), count(rule.newly_allowed)])),
    ...keys("Newly refused keys", report.newly_refused_keys),
    ...keys("Newly allowed keys", report.newly_allowed_keys),
    ...table("Rules that no request met", ["Rule"], report.unmet.map((rule) => [printable(rule)])),
  );
}

/** The text that was filled in: it is replaced unless somebody has changed it. */
let filled = "";

/** Fills in the rules file of the domain that the page shows, else of the first one. */
async function fill() {
  const domain = new URLSearchParams(location.search).get("domain") ?? (await domains())[0];
  if (!domain || $("try-rules").value !== filled) return;
  const { rules: [rule] } = await get(`api/v1/rules?${new URLSearchParams({ domain, n: 1 })}`);
  const { files } = await get("api/v1/rules/files");
  const file = files.find(({ name }) => name === rule?.file);
  if (!file) return;
  $("try-rules").value = filled = file.text;
  $("try-file").textContent = file.name;
}

$("try-open").addEventListener("click", () => {
  dialog.showModal();
  // Rules of a control plane are in no file.
  fill().catch(() => {});
});
$("try-close").addEventListener("click", () => dialog.close());
dialog.querySelector("form").addEventListener("submit", async (event) => {
  event.preventDefault();
  $("try-confirm").disabled = true;
  $("try-error").textContent = "";
  $("try-result").replaceChildren();
  try {
    show(await send("POST", "api/v1/try", { rules: $("try-rules").value }));
  } catch (error) {
    $("try-error").textContent = error.message;
  } finally {
    $("try-confirm").disabled = false;
  }
});
