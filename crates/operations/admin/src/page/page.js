// The page: draws the events of the stream, one a second.

import { open as act } from "./act.js";
import { open as switchDomain } from "./switch.js";
import { ApiError, follow, get, send, setToken, warned } from "./api.js";
import { bytes, clock, count, descriptor, duration, effect, fill, keyUrl, latency, limits, printable, rate, short, target } from "./format.js";
import * as keyPage from "./key.js";
import { domains as allDomains } from "./search.js";
import { Plot, sparkline } from "./plot.js";

const $ = (id) => document.getElementById(id);
const SECONDS = 300;
const SPARK_SECONDS = 60;
const MAX_FLASHES = 4;

let points = [];
/** The points before the page was opened: of each second, or of several replicas in steps of ten. */
let history = [];
const STEP_SECONDS = 10;
let last = {};
/** The name of the replica that is shown; empty for all. */
let shown = "";
let by = "refused";
let paused = false;
/** Refusals that shadow mode prevented are shown instead of refusals. */
let isShadow = false;
let canChange = false;
/** The domain and the rule that the tables are filtered by, from the address. */
const filter = { domain: new URLSearchParams(location.search).get("domain") ?? "", rule: new URLSearchParams(location.search).get("rule") ?? "" };
const isFiltered = !keyPage.isKey && Boolean(filter.domain || filter.rule);
/** The most rows of a table: more take a browser longer than a second to draw. */
const MAX_ROWS = 300;
/** No event for as long means that the service is gone, even if its connection is open. */
const SILENT_SECONDS = 5;
let lastEvent = Date.now();
const ruleRates = new Map();

const at = (point, text) => `${clock(point.time * 1000)}: ${text}`;
const requests = new Plot($("requests"), $("requests-at"), {
  seconds: SECONDS,
  format: short,
  lines: [
    { name: "allowed", value: "ok", area: true },
    { name: "refused", value: "over_limit", area: true },
    { name: "failed", value: "error" },
  ],
  describe: (point) => at(point, `${rate(point.ok)} allowed, ${rate(point.over_limit)} over limit, ${rate(point.error)} errors per second`),
});
const times = new Plot($("latency"), $("latency-at"), {
  seconds: SECONDS,
  format: latency,
  lines: [{ name: "p50", value: "p50_seconds" }, { name: "p99", value: "p99_seconds" }],
  describe: (point) => at(point, `p50 ${latency(point.p50_seconds)}, p99 ${latency(point.p99_seconds)}`),
});

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Updates the rows of a table to `items`, by their keys. Rows that stay keep the focus. */
function rows(body, items, keyOf, create, update = () => {}) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const place = focused?.closest("tr").sectionRowIndex;
  const known = new Map([...body.rows].map((row) => [row.dataset.key, row]));
  items.forEach((item, index) => {
    const key = keyOf(item);
    let row = known.get(key);
    known.delete(key);
    if (!row) {
      row = element("tr", {}, ...create(item));
      row.dataset.key = key;
    }
    if (body.rows[index] !== row) body.insertBefore(row, body.rows[index] ?? null);
    row.item = item;
    update(row, item);
  });
  for (const row of known.values()) row.remove();
  // A row that moved loses the focus; that of a row which is gone passes to the one in its place.
  if (focused && document.activeElement !== focused) {
    const next = focused.isConnected ? focused : body.rows[Math.min(place, body.rows.length - 1)]?.querySelector("a, button");
    next?.focus({ preventScroll: true });
  }
  oneTabStop(body);
  $(`${body.id}-empty`)?.toggleAttribute("hidden", items.length > 0);
}

const cell = (text, className = "") => element("td", { textContent: text, className });

/** The most characters of a key in a table; the rest is shown on demand. */
const MAX_SHOWN = 120;

/** A key, which links to its page if its values are known. */
function keyCell(item, isLink = true) {
  const small = fill(element("small"), printable(item.rule ?? item.domain));
  const text = descriptor(item.descriptor) + (item.descriptor_cut ? "…" : "");
  const isKnown = isLink && !item.descriptor_cut && last.status?.key_values === "plain";
  const shown = isKnown ? element("a", { href: keyUrl(item.domain, item.descriptor) }) : element("span");
  return element("td", {}, ...cut(shown, text), small);
}

/** An element with a text, of which the rest is shown on demand if it is long. */
function cut(shown, text) {
  fill(shown, text.length > MAX_SHOWN ? `${text.slice(0, MAX_SHOWN)}…` : text);
  if (text.length <= MAX_SHOWN) return [shown];
  const more = element("button", { type: "button", className: "more", textContent: "show all" });
  more.addEventListener("click", () => {
    fill(shown, text);
    more.remove();
  });
  return [shown, " ", more];
}

/** A table has one tab stop: the arrow keys move among its rows. */
function oneTabStop(body) {
  const stops = [...body.querySelectorAll("a, button")];
  const current = stops.includes(document.activeElement) ? document.activeElement : (stops.find((stop) => stop.tabIndex === 0) ?? stops[0]);
  for (const stop of stops) stop.tabIndex = stop === current ? 0 : -1;
}

for (const body of document.querySelectorAll("tbody")) {
  body.addEventListener("keydown", (event) => {
    const step = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, 1], ArrowLeft: [0, -1] }[event.key];
    const row = event.target.closest("tr");
    if (!step || !row) return;
    const stops = (one) => [...one.querySelectorAll("a, button")];
    const column = stops(row).indexOf(event.target) + step[1];
    const next = step[0] ? (step[0] > 0 ? row.nextElementSibling : row.previousElementSibling) : row;
    const target = next && stops(next)[Math.min(Math.max(column, 0), stops(next).length - 1)];
    if (!target) return;
    event.preventDefault();
    target.focus();
    oneTabStop(body);
  });
}

/** The button that opens the dialog; empty if values are not shown, or changes are disabled. */
function actCell(item) {
  const td = element("td", { className: "act" });
  if (!canChange || item.descriptor_cut) return td;
  const button = element("button", { type: "button", textContent: "Change…" });
  button.setAttribute("aria-label", `Change ${descriptor(item.descriptor)}`);
  button.addEventListener("click", () => act(item, last.overrides?.kept_in, (what, reply) => announce(warned(`${what}: ${descriptor(item.descriptor)}`, reply))));
  td.append(button);
  return td;
}

/** Shows a message for some seconds. */
function announce(text) {
  $("message").textContent = text;
  setTimeout(() => {
    if ($("message").textContent === text) $("message").textContent = "";
  }, 6000);
}

/** The replicas that a reply is about, in words. */
function scope({ scope, replicas }) {
  if (replicas === "unknown") return "this replica alone, the others are unknown";
  if (scope === "all") return `${replicas.answered} of ${replicas.known} replica${replicas.known === 1 ? "" : "s"}`;
  return scope === "this" ? "this replica" : `replica ${scope}`;
}

function live(state, text) {
  $("live").dataset.state = state;
  if ($("live").textContent !== text) $("live").textContent = text;
}

/** Fills the list of domains, once. */
async function fillDomains() {
  if ($("domain").options.length) return;
  const names = ["", ...(await allDomains())];
  $("domain").replaceChildren(...names.map((name) => new Option(name || "all domains", name, false, name === filter.domain)));
  $("domain").hidden = keyPage.isKey || names.length < 3;
}

$("domain").addEventListener("change", () => {
  location.search = $("domain").value ? new URLSearchParams({ domain: $("domain").value }) : "";
});

/** Dims the numbers of a service that is gone, and says since when. */
function dead(isDead) {
  document.body.classList.toggle("dead", isDead);
  if (isDead) live("lost", `No answer since ${clock(lastEvent)}: the numbers are old`);
}

setInterval(() => {
  if (Date.now() - lastEvent > SILENT_SECONDS * 1000 && last.status) dead(true);
}, 1000);

function notice(text) {
  $("notice").hidden = !text;
  if ($("notice").textContent !== text) $("notice").textContent = text;
}

/** What is wrong with the store: since when, why, and what callers get. Empty while it works. */
function outage({ store, callers, time }) {
  if (!store.since) return "";
  const what = store.connected ? `Most requests to ${store.kind} fail` : `${store.kind} is not connected`;
  const since = `since ${clock(store.since)} (${duration((new Date(time) - new Date(store.since)) / 1000)})`;
  return `${what} ${since}: ${printable(store.error)}. Policy ${callers.join("; policy ")}.`;
}

/** Redraws the list only if it changed, so that a screen reader reads it once. */
function drawNotEnforced(all) {
  const list = $("not-enforced");
  const texts = all.map((one) => `${one.chosen} ${one.text}`).join("\n");
  if (list.dataset.texts === texts) return;
  list.dataset.texts = texts;
  list.hidden = all.length === 0;
  list.replaceChildren(...all.map((one) => element("li", { textContent: printable(one.text), className: one.chosen ? "chosen" : "" })));
}

const UNMATCHED = { unknown_domain: "of unknown domains", no_rule: "that meet no rule" };

const STATES = { yes: "good", partly: "warn", no: "bad" };

/** Whether limits are enforced, on a line, and what the list below says first. */
function drawEnforced({ enforced, not_enforced: reasons = [], store }) {
  $("enforced").textContent = enforced ?? "unknown";
  $("enforced").closest(".tile").dataset.state = STATES[enforced] ?? "bad";
  const others = reasons.length > 1 ? ` and ${reasons.length - 1} more` : "";
  const out = store.since ? "store out of service" : "";
  $("enforced-more").textContent = reasons.length ? `${reasons[0].why.replaceAll("_", " ")}${others}` : out;
  drawNotEnforced(reasons);
}

function drawStatus(status) {
  const { per_second: now } = status.requests;
  $("about").textContent = `${scope(last.top)} · ${status.version} · up ${duration(status.uptime_seconds)} · rules ${status.rules.hash?.slice(0, 8) ?? "none"}${status.read_only ? " · read-only" : ""}`;
  const { abandoned, late } = status.answers ?? { abandoned: 0, late: 0 };
  $("too-late").hidden = abandoned + late === 0;
  const tooLate = `Envoy decided requests of the last minute by itself: ${count(abandoned)} abandoned before the answer, ${count(late)} answered after the deadline`;
  if ($("too-late").textContent !== tooLate) $("too-late").textContent = tooLate;
  const unmatched = Object.entries(status.unmatched).filter(([, n]) => n > 0);
  $("unmatched").hidden = unmatched.length === 0;
  $("unmatched").textContent = `No limit in the last minutes: ${unmatched.map(([why, n]) => `${count(n)} descriptor${n === 1 ? "" : "s"} ${UNMATCHED[why]}`).join(", ")}`;
  $("rate-ok").textContent = rate(now.ok);
  $("rate-over").textContent = rate(now.over_limit);
  $("rate-error").textContent = rate(now.error);
  $("rate-error").closest(".tile").dataset.state = now.error > 0 ? "bad" : "none";
  $("p99").textContent = latency(status.latency.p99_seconds);
  const { store } = status;
  const isHealthy = store.connected && store.breakers_open === 0 && !store.since;
  $("store").textContent = store.connected ? store.kind : `${store.kind}: not connected`;
  $("store").closest(".tile").dataset.state = isHealthy ? "good" : "bad";
  const slow = store.p99_seconds === null ? "" : `p99 ${latency(store.p99_seconds)}${store.stale ? " (stale)" : ""}`;
  $("store-more").textContent = store.breakers_open > 0 ? `${store.breakers_open} open breakers` : slow;
  $("memory").textContent = bytes(status.memory.resident_bytes);
  $("keys").textContent = status.memory.keys ? `${short(status.memory.keys.held)} counters` : "";
  drawEnforced(status);
  $("tokens").hidden = !status.token_file_failure;
  const kept = `ADMIN_TOKEN_FILE cannot be used, the tokens that were read before stay valid: ${status.token_file_failure}`;
  if ($("tokens").textContent !== kept) $("tokens").textContent = kept;
  const { owed } = status.overrides;
  $("owed").hidden = !owed;
  $("owed").textContent = owed ? `${count(owed)} change${owed === 1 ? "" : "s"} of overrides on this replica alone until Redis is back; lost if this replica ends before.` : "";
  $("outage").hidden = !store.since;
  const words = outage(status);
  if ($("outage").textContent !== words) $("outage").textContent = words;
  canChange = !status.read_only && status.key_values === "plain" && last.overrides !== undefined;
  points.push({ time: new Date(status.time) / 1000, ...now, p50_seconds: status.latency.p50_seconds, p99_seconds: status.latency.p99_seconds });
  points = points.slice(-SECONDS - 1);
  requests.set(points);
  times.set(points);
}

function drawUnmatched({ unmatched, window_seconds: window }) {
  const update = (row, shape) => {
    row.cells[1].textContent = shape.reason.replace("_", " ");
    row.cells[2].textContent = count(shape.count) + (shape.error > 0 ? ` ±${count(shape.error)}` : "");
  };
  const create = (shape) => [keyCell(shape, false), cell("", "n"), cell("", "n"), cell("")];
  rows($("top"), unmatched, (shape) => `unmatched ${shape.reason} ${shape.domain} ${descriptor(shape.descriptor)}`, create, update);
  $("top-window").textContent = `Descriptors of the last ${duration(window)}; each line is a domain, or keys with an example`;
}

const HEADINGS = { refused: ["Refused", "Allowed"], allowed: ["Refused", "Allowed"], unmatched: ["Reason", "Descriptors"] };

function drawKeys() {
  HEADINGS[by].forEach((text, at) => { $("top-head").cells[at + 1].textContent = text; });
  if (by === "unmatched") drawUnmatched(last.unmatched);
  else drawTop(by === "refused" ? last.top : last.top_allowed);
}

function drawTop({ keys, window_seconds: window }) {
  const update = (row, key) => {
    const error = key.error > 0 ? ` ±${count(key.error)}` : "";
    row.cells[1].textContent = count(key.refused) + (key.refused ? error : "");
    if (key.shadowed) row.cells[1].append(element("small", { className: "shadowed", textContent: `+ ${count(key.shadowed)}${error} in shadow mode` }));
    row.cells[1].classList.toggle("over", key.refused > 0);
    row.cells[2].textContent = count(key.allowed) + (key.allowed ? error : "");
    const { override } = key;
    const badge = row.cells[0].querySelector(".badge");
    badge.hidden = !override;
    badge.className = `badge ${override?.action ?? ""}`;
    badge.textContent = override ? effectText(override) : "";
  };
  const create = (key) => {
    const td = keyCell(key);
    td.querySelector("small").append(" ", element("span", { className: "badge" }));
    return [td, cell("", "n"), cell("", "n"), actCell(key)];
  };
  rows($("top"), keys, (key) => `${canChange} ${key.rule} ${descriptor(key.descriptor)}`, create, update);
  $("top-window").textContent = `Hits of the last ${duration(window)}`;
}

/** The file name and the line of a rule. */
const place = ({ file, line }) => (file ? `${file.split("/").at(-1)}:${line}` : "");

const REASONS = { over_limit_cache: "cached", override: "override", failure_policy: "store failure" };

/** Updates the reason of a refused key: that of its last refusal. */
function why(td, refusal) {
  const { example } = refusal;
  const parts = [refusal.count === 1 ? "once" : `${count(refusal.count)} times since ${clock(refusal.first)}`];
  if (!example.blocked) {
    parts.push(example.retry_after_seconds === null ? "never allowed" : `retry in ${duration(example.retry_after_seconds)}`);
  }
  if (REASONS[example.decided_by]) parts.push(REASONS[example.decided_by]);
  if (example.override) parts.push(`${target(example.override).slice(0, MAX_SHOWN)} in ${example.override.domain === "*" ? "all domains" : printable(example.override.domain)}`);
  if (refusal.file) parts.push(place(refusal));
  td.querySelector("span").textContent = printable(refusal.reason);
  td.querySelector("small").textContent = parts.join(" · ");
  td.querySelector("small").title = refusal.file ?? "";
}

function drawRefusals({ refusals, others }) {
  if (paused) return;
  const isFirst = $("refusals").rows.length === 0;
  const create = (refusal) => [
    cell("", "time"), keyCell(refusal), element("td", {}, element("span", { className: "over" }), element("small")), actCell(refusal),
  ];
  const update = (row, refusal) => {
    row.cells[0].textContent = clock(refusal.last);
    why(row.cells[2], refusal);
  };
  const before = new Set([...$("refusals").rows].map((row) => row.dataset.key));
  rows($("refusals"), refusals, (refusal) => `${canChange} ${refusal.domain} ${refusal.rule} ${Boolean(refusal.example.blocked)} ${descriptor(refusal.descriptor)}`, create, update);
  $("refusals-others").textContent = others > 0 ? `and ${count(others)} refusals of other keys in the last ten minutes` : "";
  $("refusals-empty").textContent = isShadow ? "Shadow mode prevented no refusal." : "No refusals.";
  const fresh = [...$("refusals").rows].filter((row) => !before.has(row.dataset.key));
  // Many new rows in a second do not flash.
  const isFew = !isFirst && fresh.length <= MAX_FLASHES;
  for (const row of $("refusals").rows) row.classList.toggle("new", isFew && fresh.includes(row));
}

function drawRules({ rules: all, total }) {
  const rules = all.filter((rule) => !filter.rule || rule.rule === filter.rule).slice(0, MAX_ROWS);
  if (filter.rule) total = rules.length;
  for (const rule of rules) {
    const rates = ruleRates.get(rule.rule) ?? { allowed: [], refused: [] };
    const { allowed, refused, shadowed } = rule.per_second ?? { allowed: 0, refused: 0, shadowed: 0 };
    rates.allowed = [...rates.allowed, allowed].slice(-SPARK_SECONDS);
    rates.refused = [...rates.refused, refused + shadowed].slice(-SPARK_SECONDS);
    ruleRates.set(rule.rule, rates);
  }
  const shown = new Set(rules.map((rule) => rule.rule));
  for (const rule of ruleRates.keys()) if (!shown.has(rule)) ruleRates.delete(rule);
  const create = (rule) => {
    const modes = [rule.shadow_mode && "shadow", rule.quota_mode && "quota"].filter(Boolean);
    const badges = modes.map((mode) => element("span", { className: "badge", textContent: mode }));
    const limited = rule.unlimited ? "unlimited" : limits(rule);
    return [
      element("td", {}, fill(element("span"), rule.rule), " ", ...badges, element("small", { textContent: place(rule), title: rule.file ?? "" })),
      fill(cell(""), limited), cell("", "n"), cell("", "n"), cell(""),
    ];
  };
  const update = (row, rule) => {
    const rates = rule.per_second;
    const least = rule.partial ? "≥ " : "";
    row.cells[2].textContent = rates && rule.has_fixed_name ? least + rate(rates.allowed) : "–";
    row.cells[3].textContent = rates && rule.has_fixed_name ? least + rate(rates.refused + rates.shadowed) : "–";
    row.cells[3].classList.toggle("over", (rates?.refused ?? 0) > 0);
    const { allowed, refused } = ruleRates.get(rule.rule);
    row.cells[4].replaceChildren(sparkline([{ name: "allowed", values: allowed }, { name: "refused", values: refused }], SPARK_SECONDS));
  };
  const key = (rule) => JSON.stringify([rule.rule, rule.file, rule.line, rule.limits, rule.shadow_mode, rule.quota_mode]);
  rows($("rules"), rules, key, create, update);
  $("rules-about").textContent = total > rules.length ? `the busiest ${count(rules.length)} of ${count(total)}: search for others` : "";
}

/** Seconds until a time by the clock of the service; null without a time. */
const until = (moment) => (moment ? (new Date(moment) - new Date(last.status.time)) / 1000 : null);

/** `5/minute`, with a calendar `500 per month (Europe/Berlin, from the 15th)`, `scale burst to 50%`, `block`. */
const effectText = (override) => {
  const isPlain = override.action === "limit" && !override.calendar && !override.name;
  return isPlain ? `${count(override.requests_per_unit)}/${override.unit}`.toLowerCase() : effect(override);
};

/** The overrides, after the switches of domains. */
function drawOverrides({ overrides, total }, { domains }) {
  const create = (override) => {
    const { action, on_store_failure: policy } = override;
    const what = policy ? `on store failure: ${policy}` : effectText(override);
    const place = override.this_replica ? "this replica alone" : "";
    const more = [place, override.reason, override.by && `by ${override.by}`].filter(Boolean).join(" · ");
    const button = element("button", { type: "button", textContent: "Remove", disabled: last.status?.read_only ?? false });
    button.setAttribute("aria-label", `Remove the override of ${target(override)}`);
    button.addEventListener("click", () => remove(button, override));
    const domain = override.domain === "*" ? "all domains" : printable(override.domain);
    const hasValues = last.status?.key_values === "plain" && override.descriptor?.every(({ value }) => value !== null && value !== undefined);
    return [
      element("td", {}, ...cut(hasValues ? element("a", { href: keyUrl(override.domain, override.descriptor) }) : element("span"), target(override)), element("small", { textContent: domain })),
      element("td", {}, fill(element("span", { className: `badge ${action ?? ""}` }), what), element("small", { textContent: printable(more) })),
      cell("", "left"), element("td", { className: "act" }, button),
    ];
  };
  const update = (row, override) => {
    const left = until(override.expires_at);
    row.cells[2].textContent = left === null ? "no end" : duration(left);
  };
  const isOfDomain = (override) => !filter.domain || override.domain === filter.domain || override.domain === "*";
  const present = [...domains, ...overrides].filter((override) => isOfDomain(override) && (until(override.expires_at) ?? 1) > 0);
  rows($("overrides"), present, (override) => JSON.stringify(override), create, update);
  $("overrides-about").textContent = total > overrides.length ? `${count(overrides.length)} of ${count(total)}` : "";
  $("switch-open").hidden = last.status?.read_only ?? true;
}

async function remove(button, override) {
  const isSwitch = !override.entry && !override.descriptor;
  const what = isSwitch ? `all switches of domain ${override.domain}` : `the override of ${target(override)} in domain ${override.domain}`;
  if (!window.confirm(`Remove ${what}? The rules apply again at once.`)) return;
  button.disabled = true;
  try {
    const path = isSwitch ? `domains?domain=${encodeURIComponent(override.domain)}` : `overrides/${encodeURIComponent(override.id)}`;
    const reply = await send("DELETE", `api/v1/${path}`);
    announce(warned(`Removed: ${target(override)}`, reply));
  } catch (error) {
    button.disabled = false;
    notice(`The override was not removed: ${error.message}`);
  }
}

$("switch-open").addEventListener("click", () => {
  const domains = [...new Set((last.rules?.rules ?? []).map((rule) => rule.domain))].sort();
  switchDomain(domains, last.overrides?.kept_in, announce);
});

function drawReplicas({ own, replicas }) {
  const hash = replicas.find(({ id }) => id === own)?.rules_hash;
  // Names in one list are as many as there are replicas.
  const names = ["", ...replicas.map(({ id }) => id)];
  if ($("scope").options.length !== names.length || names.some((name, at) => $("scope").options[at].value !== name)) {
    $("scope").replaceChildren(...names.map((name) => new Option(name ? `${name}${name === own ? " (this)" : ""}` : "all replicas", name, false, name === shown)));
    shown = $("scope").value;
  }
  const create = () => [element("td", {}, element("span"), element("small")), cell(""), cell("", "n")];
  const update = (row, replica) => {
    row.querySelector("span").textContent = replica.id;
    const late = replica.age_seconds > 4 ? ` · silent for ${replica.age_seconds} s` : "";
    const silent = replica.summary === "published" ? late : ` · without its numbers: ${replica.summary}`;
    const summary = silent + (replica.rejected ? ` · rejected newer rules: ${printable(replica.rejected)}` : "");
    row.querySelector("small").textContent = replica.version + (replica.id === own ? " · this replica" : "") + summary;
    row.querySelector("small").classList.toggle("over", summary !== "");
    row.cells[1].textContent = replica.rules_hash?.slice(0, 8) ?? "none";
    row.cells[1].title = replica.rules_hash ?? "";
    row.cells[1].classList.toggle("over", replica.rules_hash !== hash);
    row.cells[2].textContent = rate(replica.requests_per_second);
  };
  rows($("replicas"), replicas, (replica) => replica.id, create, update);
}

function drawChanges({ changes }) {
  const create = (change) => {
    const where = change.replicas.length > 1 ? `${change.replicas.length} replicas` : change.replicas[0];
    const rules = (change.rules ?? []).map(({ rule, old, new: now }) => `${rule}: ${old ?? "new"} → ${now ?? "removed"}`);
    const more = [change.by && `by ${change.by}`, change.reason, `on ${where}`, ...rules].filter(Boolean).join(" · ");
    const what = element("td", {}, `${change.action.replaceAll("_", " ")} `, ...cut(element("b"), printable(change.what)));
    what.append(element("small", { textContent: printable(more) }));
    return [cell(clock(change.time), "time"), what];
  };
  rows($("changes"), changes, (change) => JSON.stringify(change), create);
}

/** The tick with the numbers of the chosen replica, domain and rule in place of those of all. */
async function chosen(tick) {
  const shadowed = isShadow ? { shadowed: "true" } : {};
  const refusals = (more) => `refusals?${new URLSearchParams({ n: 100, ...shadowed })}&${more}`;
  if (!shown && !isFiltered) return isShadow ? { ...tick, refusals: await get(`api/v1/${refusals("")}`) } : tick;
  const query = (names) => new URLSearchParams(Object.entries({ replica: shown, ...filter }).filter(([name, value]) => value && names.includes(name)));
  const [all, ofDomain, ofReplica] = [query(["replica", "domain", "rule"]), query(["replica", "domain"]), query(["replica"])];
  const calls = {
    status: `status?${ofReplica}`, top: `top?n=100&by=refused&${all}`, top_allowed: `top?n=100&by=allowed&${all}`,
    unmatched: `top?n=20&unmatched=true&${ofDomain}`, refusals: refusals(ofDomain),
    rules: `rules?n=${MAX_ROWS}&by=hits&${all}`,
    ...(isFiltered ? { overrides: `overrides?n=100&${query(["domain"])}` } : {}),
  };
  const replies = await Promise.all(Object.values(calls).map((path) => get(`api/v1/${path}`)));
  const own = Object.fromEntries(Object.keys(calls).map((name, at) => [name, replies[at]]));
  if (filter.rule) own.refusals.refusals = own.refusals.refusals.filter((refusal) => refusal.rule === filter.rule);
  return { ...tick, ...own };
}

function drawTick(tick) {
  last = tick;
  fillDomains().catch((error) => notice(error.message));
  if (keyPage.isKey) {
    keyPage.draw(tick);
    canChange = !tick.status.read_only;
    $("about").textContent = `${tick.status.version} · rules ${tick.status.rules.hash?.slice(0, 8) ?? "none"}${tick.status.read_only ? " · read-only" : ""}`;
    live(tick.status.store.since ? "lost" : "live", tick.status.store.since ? "Store out of service" : "Live");
    return;
  }
  // They are those of all replicas. Where points are known, these are finer.
  const isNew = (old) => !points.some((point) => Math.abs(point.time - old.time) < STEP_SECONDS);
  if (!shown) points = [...points, ...history.filter(isNew)].sort((one, other) => one.time - other.time);
  history = [];
  drawStatus(tick.status);
  drawKeys();
  drawRefusals(tick.refusals);
  drawRules(tick.rules);
  const hasOverrides = Boolean(tick.overrides && tick.domains);
  $("overrides-panel").hidden = !hasOverrides;
  if (hasOverrides) drawOverrides(tick.overrides, tick.domains);
  $("replicas-panel").hidden = tick.status.overrides.kept_in !== "redis";
  const isKnown = Array.isArray(tick.replicas?.replicas);
  $("scope").hidden = !isKnown || tick.replicas.replicas.length < 2;
  if (isKnown) drawReplicas(tick.replicas);
  else $("replicas").replaceChildren(element("tr", {}, cell("unknown"), cell(""), cell("")));
  drawChanges(tick.changes);
  if (tick.status.store.since) live("lost", "Store out of service");
  else live("live", "Live");
}

/** Opens the dialog for a token; resolves when one is entered. */
function login(message) {
  $("login-error").textContent = message;
  if (!$("login").open) $("login").showModal();
  return new Promise((resolve) => {
    $("login").querySelector("form").addEventListener("submit", () => {
      setToken($("login-token").value);
      resolve();
    }, { once: true });
  });
}

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));

async function run() {
  for (let tried = false; ; tried = true) {
    const begun = Date.now();
    try {
      await follow("api/v1/events", (name, value) => {
        lastEvent = Date.now();
        dead(false);
        if (name === "history") history = value;
        if (name === "tick") chosen(value).then(drawTick, (error) => notice(`Replica ${shown}: ${error.message}`));
      });
      // The service ends each stream after some seconds.
      if (Date.now() - begun > 1000) continue;
      live("lost", "Disconnected, reconnecting…");
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) {
        live("lost", "A token is required");
        await login(tried ? error.message : "");
        continue;
      }
      if (error instanceof ApiError) notice(error.message);
      live("lost", "Disconnected, reconnecting…");
    }
    if (last.status) dead(true);
    await pause(1000);
  }
}

for (const button of document.querySelectorAll("[data-by]")) {
  button.addEventListener("click", () => {
    by = button.dataset.by;
    for (const other of document.querySelectorAll("[data-by]")) other.setAttribute("aria-pressed", other === button);
    if (last.top) drawKeys();
  });
}
$("scope").addEventListener("change", () => {
  shown = $("scope").value;
  points = [];
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").setAttribute("aria-pressed", paused);
  $("pause").textContent = paused ? "resume" : "pause";
});
$("shadow").addEventListener("click", () => {
  isShadow = !isShadow;
  $("shadow").setAttribute("aria-pressed", isShadow);
});
if (isFiltered) {
  $("filter").hidden = false;
  $("filter-text").textContent = [filter.domain && `domain ${filter.domain}`, filter.rule && `rule ${filter.rule}`].filter(Boolean).join(", ");
}
if (keyPage.isKey) keyPage.begin(announce);
run();
