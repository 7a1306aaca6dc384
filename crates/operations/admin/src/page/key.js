// The page for one key, `key?domain=…&descriptor=…`: its limit and whose it is, its counter, hits, refusals, overrides, and the
// changes that touched it.

import { open as act } from "./act.js";
import { get, send, warned } from "./api.js";
import { count, clock, descriptor, duration, effect, fill, limit, printable, quoted, rate, short, target } from "./format.js";
import { Plot } from "./plot.js";
import { entries } from "./search.js";

const $ = (id) => document.getElementById(id);
const query = new URLSearchParams(location.search);
const domain = query.get("domain") ?? "";
const own = entries(query.get("descriptor") ?? "");
/** How often the page asks, in events of the stream, which come each second. */
const EVERY = 2;

let ticks = 0;
let isAsking = false;

/** True if this page is that of a key. */
export const isKey = location.pathname.endsWith("/key");

const same = (one) => one && own && one.length === own.length && one.every(({ key, value }, at) => key === own[at].key && value === own[at].value);

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** Replaces the rows of a table. The focus stays at the button with the same name. */
function redraw(body, rows) {
  const name = body.contains(document.activeElement) ? document.activeElement.getAttribute("aria-label") : null;
  body.replaceChildren(...rows);
  if (name) [...body.querySelectorAll("button")].find((button) => button.getAttribute("aria-label") === name)?.focus({ preventScroll: true });
}

const cell = (text, className = "") => element("td", { textContent: text, className });

/** What the rules and the overrides say, in sentences. */
function explain(state, rule, overrides, domains) {
  const lines = [];
  const place = rule?.file ? ` (${rule.file}:${rule.line})` : "";
  if (!state.rule) lines.push("No rule matches this descriptor, so its requests are not limited and not counted.");
  else if (rule?.unlimited) lines.push(`The rule ${state.rule}${place} allows every request.`);
  else lines.push(`The rule ${state.rule}${place} has the limit ${(rule?.limits ?? []).map(limit).join(" and ") || "of an override"}.`);
  if (rule?.shadow_mode) lines.push("It is in shadow mode: requests over the limit are counted and allowed.");
  if (rule?.quota_mode) lines.push("It is a quota: a request is over limit when every quota of the request is.");
  if (state.override) lines.push(`An override decides instead: ${effect(state.override)}.`);
  else if (overrides.length) lines.push("Overrides below may apply to requests with more entries.");
  for (const one of domains) lines.push(`The domain is switched: ${one.action ?? `on store failure: ${one.on_store_failure}`}.`);
  return lines;
}

function drawLimits(state, rule) {
  const by = state.override;
  const rows = state.limits.map((one) => {
    const isOverridden = ["limit", "scale"].includes(by?.action) && [undefined, one.name].includes(by.name);
    const owner = isOverridden ? `override${by.by ? ` by ${by.by}` : ""}${by.reason ? `: ${by.reason}` : ""}` : `rule ${one.rule}`;
    const reset = one.resets_in_seconds ? `resets in ${duration(one.resets_in_seconds)}` : "";
    const most = Math.max(one.requests_per_unit, 1);
    const meter = element("meter", { max: most, low: most * 0.8, high: most * 0.999, optimum: 0, value: one.used });
    meter.setAttribute("aria-label", `${count(one.used)} of ${count(one.requests_per_unit)} used`);
    const held = one.held ? `, ${count(one.held)} held` : "";
    return element("tr", {},
      element("td", {}, fill(element("b"), limit(one)), element("small", { textContent: printable([one.name, owner].filter(Boolean).join(" · ")) })),
      element("td", {}, `${count(one.used)} of ${count(one.requests_per_unit)} spent${held}, ${count(one.remaining)} left`, element("small", { textContent: reset })), element("td", {}, meter));
  });
  const words = by ? `Override: ${effect(by)}` : rule?.unlimited ? "Unlimited" : "No limit.";
  redraw($("key-limits"), rows);
  $("key-limits-empty").hidden = rows.length > 0;
  $("key-limits-empty").textContent = words;
}

const plot = new Plot($("key-plot"), $("key-plot-at"), {
  seconds: 300,
  format: short,
  lines: [{ name: "allowed", value: "allowed", area: true }, { name: "refused", value: "refused", area: true }, { name: "shadowed", value: "shadowed" }],
  empty: "drawn from now on",
  describe: (point) => `${clock(point.time * 1000)}: ${point.allowed === null ? "unknown" : `${rate(point.allowed)} allowed, ${rate(point.refused)} refused${point.shadowed ? `, ${rate(point.shadowed)} in shadow mode` : ""}`} per second`,
});
let points = [];
/** The last replies: more than one, because the counts of other replicas arrive every two seconds. */
let counts = [];
const SMOOTHED = 3;

/** Hits per second in the last replies; unknown when counts of earlier minutes left the sum. */
function drawPlot(now, time) {
  const [first] = counts;
  if (!first) $("key-plot-title").textContent = `Hits per second since ${clock(time)}`;
  const per = (name) => (now[name] - first[name]) / ((time - first.time) / 1000);
  const rates = first && time > first.time ? { allowed: per("allowed"), refused: per("refused"), shadowed: per("shadowed") } : {};
  const isKnown = first?.isCounted === now.isCounted && time > first.time && Object.values(rates).every((one) => one >= 0);
  const unknown = { allowed: null, refused: null, shadowed: null };
  if (first) points = [...points, { time: time / 1000, ...(isKnown ? rates : unknown) }].slice(-150);
  counts = [...(isKnown ? counts : []), { ...now, time }].slice(-SMOOTHED);
  plot.set(points);
}

/** The hits of the key, and those since the page was opened: of a key that is not among the counted ones, by its counter. */
function drawHits(key, refusals, shadowed, window, used, time) {
  $("key-counts").hidden = !key;
  $("key-allowed").textContent = count(key?.allowed);
  $("key-refused").textContent = count(key?.refused);
  for (const id of ["key-shadow", "key-legend"]) $(id).hidden = !key?.shadowed;
  $("key-shadowed").textContent = count(key?.shadowed);
  $("key-window").textContent = key ? `in the last ${duration(window)}` : "Not among the counted keys, which are those with the most hits: below are the hits that its counter takes.";
  const { allowed, refused, shadowed: inShadow } = key ?? { allowed: used, refused: 0, shadowed: 0 };
  drawPlot({ isCounted: Boolean(key), allowed, refused, shadowed: inShadow }, time);
  const all = [...refusals, ...shadowed.map((one) => ({ ...one, reason: `${one.reason}, allowed by shadow mode` }))];
  const rows = all.map((one) => element("tr", {},
    cell(clock(one.last), "time"), element("td", {}, element("span", { className: "over", textContent: printable(one.reason) }), element("small", { textContent: `${count(one.count)} since ${clock(one.first)}` }))));
  $("key-refusals").replaceChildren(...rows);
  $("key-refusals-empty").hidden = rows.length > 0;
}

function drawOverrides(overrides, kept, readOnly, now) {
  const rows = overrides.map((one) => {
    const left = one.expires_at ? (new Date(one.expires_at) - now) / 1000 : null;
    const what = effect(one);
    const more = [one.reason, one.by && `by ${one.by}`].filter(Boolean).join(" · ");
    const buttons = element("td", { className: "act" });
    const button = (text, run) => {
      const made = element("button", { type: "button", textContent: text, disabled: readOnly });
      made.setAttribute("aria-label", `${text.replace("…", "")} the override of ${target(one)}`);
      made.addEventListener("click", run);
      buttons.append(made, " ");
    };
    // An override of one entry or of a shorter descriptor keeps its own target.
    const subject = one.entry ? { domain: one.domain, descriptor: own, entry: one.entry } : { domain: one.domain, descriptor: one.descriptor };
    const editable = one.descriptor?.every(({ value }) => value != null) || (one.entry && own.some(({ key }) => key === one.entry.key));
    if (editable) {
      button("Edit…", () => act(subject, kept, changed, one));
      button("Extend…", () => act(subject, kept, changed, one, "act-for"));
    }
    button("Remove", () => remove(one));
    return element("tr", {}, element("td", {}, fill(element("span"), target(one)), element("small", { textContent: one.domain === "*" ? "all domains" : printable(one.domain) })),
      element("td", {}, fill(element("span", { className: `badge ${one.action}` }), what), element("small", { textContent: printable(more) })),
      cell(left === null ? "no end" : duration(left), "left"), buttons);
  });
  redraw($("key-overrides"), rows);
  $("key-overrides-empty").hidden = rows.length > 0;
}

function drawChanges(changes, rule) {
  const name = descriptor(own);
  const touched = changes.filter((one) => `${one.what} `.includes(`${name} `) || one.what.includes(`${name},`) || (one.rules ?? []).some((change) => change.rule === rule));
  const rows = touched.map((one) => {
    const rules = (one.rules ?? []).filter((change) => change.rule === rule).map(({ old, new: now }) => `${old ?? "new"} → ${now ?? "removed"}`);
    const more = [one.by && `by ${one.by}`, one.reason, ...rules].filter(Boolean).join(" · ");
    return element("tr", {}, cell(clock(one.time), "time"),
      element("td", {}, `${one.action.replaceAll("_", " ")} `, fill(element("b"), printable(one.what)), element("small", { textContent: printable(more) })));
  });
  $("key-changes").replaceChildren(...rows);
  $("key-changes-empty").hidden = rows.length > 0;
}

let announce = () => {};

function changed(what, reply) {
  announce(warned(`${what}: ${descriptor(own)}`, reply));
  ticks = 0;
}

async function remove(one) {
  if (!window.confirm(`Remove the override of ${target(one)} in domain ${one.domain}? The rules apply again at once.`)) return;
  try {
    changed("Removed", await send("DELETE", `api/v1/overrides/${encodeURIComponent(one.id)}`));
  } catch (error) {
    $("key-error").textContent = `The override was not removed: ${error.message}`;
  }
}

async function ask(tick) {
  const text = query.get("descriptor");
  const named = new URLSearchParams({ domain, descriptor: text });
  const [state, overrides, refusals, shadowed, top, changes] = await Promise.all([
    `counters?${named}`, `overrides?${new URLSearchParams({ domain, request: text, n: 100 })}`, `refusals?${named}`, `refusals?shadowed=true&${named}`,
    `top?${named}`,
    "changes?n=100",
  ].map((path) => get(`api/v1/${path}`)));
  const rules = state.rule ? await get(`api/v1/rules?${new URLSearchParams({ domain, rule: state.rule })}`) : { rules: [] };
  const [rule] = rules.rules;
  const isPlain = top.key_values === "plain";
  const of = (all) => (isPlain ? all.refusals.filter((one) => same(one.descriptor)) : []);
  $("key-explain").replaceChildren(...explain(state, rule, overrides.overrides, tick.domains.domains.filter((one) => one.domain === domain || one.domain === "*")).map((line) => element("li", { textContent: printable(line) })));
  drawLimits(state, rule);
  const used = Math.max(0, ...state.limits.map((one) => one.used));
  drawHits(top.keys[0], of(refusals), of(shadowed), top.window_seconds, used, Date.parse(tick.status.time));
  drawOverrides(overrides.overrides, overrides.kept_in, tick.status.read_only, new Date(tick.status.time));
  drawChanges(changes.changes, state.rule);
  $("key-change").disabled = tick.status.read_only;
  $("key-change").onclick = () => act({ domain, descriptor: own, rule: state.rule }, overrides.kept_in, changed);
  $("key-error").textContent = "";
}

/** Shows the key instead of the tables. `say` shows a message for some seconds. */
export function begin(say) {
  announce = say;
  document.title = `${query.get("descriptor") ?? ""} · Tollgate`;
  $("main").hidden = true;
  $("key").hidden = false;
  $("key-title").textContent = own ? descriptor(own) : "No key";
  $("key-domain").textContent = domain;
  $("key-command").textContent = `tollgate explain -- ${quoted(domain)} ${quoted(printable(query.get("descriptor") ?? ""))}`;
  $("key-link").addEventListener("click", async () => {
    await navigator.clipboard?.writeText(location.href);
    say("The link is copied");
  });
  if (!domain || !own) $("key-error").textContent = "The address has no key: expected key?domain=DOMAIN&descriptor=KEY=VALUE,…";
}

/** Asks again, at most one question at a time. */
export async function draw(tick) {
  if (!domain || !own || isAsking || ticks++ % EVERY) return;
  isAsking = true;
  try {
    await ask(tick);
  } catch (error) {
    $("key-error").textContent = error.message;
  } finally {
    isAsking = false;
  }
}
