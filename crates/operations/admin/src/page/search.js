// The search over rules, keys and overrides. A key opens its page; a rule filters the tables.

import { get } from "./api.js";
import { count, descriptor, effect, keyUrl, limits, printable, target } from "./format.js";

const $ = (id) => document.getElementById(id);
const MAX_SHOWN = 12;
const FRESH_MILLISECONDS = 10_000;

let found = { time: 0, items: [] };

/** Every rule, key and override, each with a text to search, a link and two lines. */
async function load() {
  if (Date.now() - found.time < FRESH_MILLISECONDS) return found.items;
  const [rules, allowed, refused, overrides] = await Promise.all(
    ["rules?n=100000", "top?n=1000&by=allowed", "top?n=1000&by=refused", "overrides?n=1000"].map((path) => get(`api/v1/${path}`)),
  );
  const keys = new Map();
  for (const key of [...refused.keys, ...allowed.keys]) keys.set(`${key.domain} ${descriptor(key.descriptor)}`, key);
  const items = [];
  for (const key of keys.values()) {
    if (key.descriptor_cut || refused.key_values !== "plain") continue;
    items.push({ kind: "key", url: keyUrl(key.domain, key.descriptor), title: descriptor(key.descriptor), more: `rule ${key.rule}` });
  }
  for (const one of overrides.overrides) {
    const url = one.descriptor && one.descriptor.every(({ value }) => value != null) ? keyUrl(one.domain, one.descriptor) : `./?${new URLSearchParams({ domain: one.domain })}`;
    items.push({ kind: "override", url, title: target(one), more: `${one.action === "limit" ? "limit " : ""}${effect(one)} in ${one.domain}${one.reason ? `: ${one.reason}` : ""}` });
  }
  for (const rule of rules.rules) {
    const shown = rule.unlimited ? "unlimited" : limits(rule);
    const place = rule.file ? ` · ${rule.file}:${rule.line}` : "";
    items.push({ kind: "rule", domain: rule.domain, url: `./?${new URLSearchParams({ domain: rule.domain, rule: rule.rule })}`, title: rule.rule, more: shown + place });
  }
  for (const item of items) item.text = `${item.title} ${item.more}`.toLowerCase();
  found = { time: Date.now(), items };
  return items;
}

/** `user=ann,path=/cart` as entries; null for a text that is no descriptor. */
export function entries(text) {
  const parts = text.match(/(?:\\.|[^,\\])+/g) ?? [];
  const read = parts.map((part) => {
    const at = part.search(/(?<!\\)=/);
    const plain = (one) => one.replace(/\\(.)/g, "$1");
    return at > 0 ? { key: plain(part.slice(0, at)), value: plain(part.slice(at + 1)) } : null;
  });
  return read.length && read.every(Boolean) ? read : null;
}

/** The domains that have rules. */
export const domains = async () => domainsOf(await load());

const domainsOf = (items) => [...new Set(items.filter(({ kind }) => kind === "rule").map(({ domain }) => domain))].sort();

/** What a text finds: first the keys that it names itself, then what contains each of its words. */
function matches(items, text) {
  const named = entries(text.trim());
  const own = named ? domainsOf(items).slice(0, 5).map((domain) => ({ kind: "key", url: keyUrl(domain, named), title: descriptor(named), more: `in domain ${domain}` })) : [];
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  const urls = new Set();
  return [...items.filter((item) => words.every((word) => item.text.includes(word))), ...own].filter(({ kind, url }) => {
    const is = `${kind} ${url}`;
    return !urls.has(is) && urls.add(is);
  });
}

/** The dialog for all requests with a value, or with that of an entry. */
function requests(text) {
  const named = entries(text);
  const value = named?.length === 1 ? named[0].value : text;
  return { kind: "requests", url: `#${new URLSearchParams({ why: value })}`, title: `All requests with ${value}`, more: "what refused them, and an exemption from all of it" };
}

async function show() {
  const text = $("search").value;
  if (!text.trim()) return hide();
  let all;
  try {
    all = matches(await load(), text);
  } catch (error) {
    all = [{ kind: "", url: "", title: "The search failed", more: error.message }];
  }
  if (text !== $("search").value) return undefined;
  const rows = [...all.slice(0, MAX_SHOWN), requests(text.trim())].map(({ kind, url, title, more }) => {
    const link = document.createElement("a");
    if (url) link.href = url;
    const [badge, line] = [document.createElement("span"), document.createElement("small")];
    badge.className = "badge";
    badge.textContent = kind;
    line.textContent = printable(more);
    link.append(badge, ` ${printable(title)}`, line);
    const row = document.createElement("li");
    row.append(link);
    return row;
  });
  $("found").replaceChildren(...rows);
  $("found-about").textContent = all.length > MAX_SHOWN ? `${count(MAX_SHOWN)} of ${count(all.length)}: type more` : all.length ? "" : "Nothing matches.";
  $("found-panel").hidden = false;
  return undefined;
}

const hide = () => { $("found-panel").hidden = true; };

/** Moves the focus among the field and the results. */
function move(event) {
  const links = [$("search"), ...$("found").querySelectorAll("a")];
  const at = links.indexOf(document.activeElement);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Escape") {
    hide();
    $("search").focus();
  } else if (step && at >= 0) {
    event.preventDefault();
    links[Math.min(Math.max(at + step, 0), links.length - 1)].focus();
  } else if (event.key === "Enter" && at === 0) {
    event.preventDefault();
    links[1]?.click();
  }
}

$("search").addEventListener("input", show);
$("search").addEventListener("focus", show);
$("search-form").addEventListener("keydown", move);
$("search-form").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("click", (event) => {
  if (!$("search-form").contains(event.target)) hide();
});
// `/` goes to the search, as on many sites.
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, select, textarea, dialog")) return;
  event.preventDefault();
  $("search").focus();
});
