// Formats numbers, times and descriptors.

const number = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const small = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export const count = (value) => number.format(value ?? 0);

export const rate = (value) => (value > 0 && value < 9.95 ? small : number).format(value ?? 0);

export const short = (value) =>
  value >= 1e6 ? `${small.format(value / 1e6)}M` : value >= 1e4 ? `${small.format(value / 1e3)}k` : small.format(value);

export const latency = (seconds) => {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds === 0) return "0";
  if (seconds < 0.0001) return `${number.format(seconds * 1e6)} µs`;
  return seconds < 1 ? `${small.format(seconds * 1e3)} ms` : `${small.format(seconds)} s`;
};

export const bytes = (value) => {
  if (value === null || value === undefined) return "–";
  return value < 1e9 ? `${small.format(value / 1e6)} MB` : `${small.format(value / 1e9)} GB`;
};

/** Seconds in the two largest units of days, hours, minutes and seconds. */
export function duration(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  const parts = [[86400, "d"], [3600, "h"], [60, "m"], [1, "s"]];
  let left = whole;
  const units = [];
  for (const [length, unit] of parts) {
    const n = Math.floor(left / length);
    left -= n * length;
    if (n > 0 || units.length > 0) units.push(n > 0 ? `${n}${unit}` : "");
  }
  return units.slice(0, 2).filter(Boolean).join(" ") || "0s";
}

/** A time of day with its zone: `13:05:02 UTC`. */
export const clock = (time) =>
  new Date(time).toLocaleTimeString("en-GB", {
    hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short",
  });

const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** A text in which control characters, and those that are invisible or change its direction, are escaped as in commands. */
export const printable = (text) =>
  text.replace(
    /[\p{Cc}\u{ad}\u{61c}\u{180e}\u{200b}-\u{200f}\u{2028}-\u{202e}\u{2060}-\u{206f}\u{feff}\u{e0000}-\u{e007f}]/gu,
    (one) => SHORT[one] ?? `\\u{${one.codePointAt(0).toString(16)}}`,
  );

const UTF8 = new TextEncoder();

/** A text as one word of a shell, as `text::shell::quoted` writes it. */
export function quoted(text) {
  if (/^[\w./:=@%+,-]+$/.test(text)) return text;
  if (printable(text) === text) return `'${text.replaceAll("'", "'\\''")}'`;
  const octal = (one) => [...UTF8.encode(one)].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
  return `$'${[...text].map((one) => (one === "'" || one === "\\" || printable(one) !== one ? octal(one) : one)).join("")}'`;
}

/** Longer words may be broken anywhere. */
const MAX_WORD = 24;

/** Puts a text into an element, which may break it after a separator of keys, names of rules and time zones, but not in an address. */
export function fill(element, text) {
  const words = text.split(/(?<=[=,@])|(?<=[._/:-])(?!\d)/);
  element.replaceChildren(...words.flatMap((word, at) => (at ? [document.createElement("wbr"), word] : [word])));
  element.classList.toggle("long", words.some((word) => word.split(" ").some(({ length }) => length > MAX_WORD)));
  return element;
}

/** A descriptor in the notation of the commands. */
export const descriptor = (entries) =>
  entries.map(({ key, value }) => {
    const escaped = (text) => printable(text.replaceAll("\\", "\\\\").replaceAll(",", "\\,"));
    return value === null || value === undefined ? escaped(key) : `${escaped(key).replaceAll("=", "\\=")}=${escaped(value)}`;
  }).join(",");

/** The address of the page for a key. */
export const keyUrl = (domain, entries) => {
  const escaped = (text) => text.replaceAll("\\", "\\\\").replaceAll(",", "\\,");
  const text = entries.map(({ key, value }) => `${escaped(key).replaceAll("=", "\\=")}=${escaped(value ?? "")}`).join(",");
  return `key?${new URLSearchParams({ domain, descriptor: text })}`;
};

/** What an override applies to, in words. */
export const target = (override) => {
  if (override.entry) return `any descriptor with ${descriptor([override.entry])}`;
  return override.descriptor ? descriptor(override.descriptor) : "all requests";
};

/** `Europe/Berlin, from the 15th` */
function calendarText({ time_zone: zone, week_start: weekday, anchor_day: day }) {
  if (weekday) return `${zone}, from ${weekday[0].toUpperCase()}${weekday.slice(1)}`;
  if (!day) return zone;
  const ending = day % 100 >= 11 && day % 100 <= 13 ? "th" : (["th", "st", "nd", "rd"][day % 10] ?? "th");
  return `${zone}, from the ${day}${ending}`;
}

export function limit({ requests_per_unit: requests, unit, unit_multiplier: units, calendar, schedule }) {
  const word = unit.toLowerCase();
  const span = word === "unknown" ? "at a time" : `per ${units > 1 ? `${units} ${word}s` : word}`;
  const more = [calendar && calendarText(calendar), schedule].filter(Boolean).map((text) => ` (${printable(text)})`);
  return `${count(requests)} ${span}${more.join("")}`;
}

/** All limits of a rule, or of a reply's `before` or `after`: `20 per second (burst), 5,000 per day (quota)`. */
export function limits({ action, limits: all }) {
  const texts = all.map((one) => `${limit(one)}${one.name ? ` (${printable(one.name)})` : ""}`);
  return [action, ...texts].filter(Boolean).join(", ") || "no limit";
}

/** What an override does: `limit 5 per hour`, `scale burst to 50%`, `block`. */
export function effect(one) {
  const name = one.name ? `${printable(one.name)} ` : "";
  if (one.action === "scale") return `scale ${name}to ${one.scale}`;
  return one.action === "limit" ? `${name}${limit(one)}` : one.action;
}

/** The scope of an override, by the place where it is stored. */
export const PLACES = {
  redis: "on all replicas that share this Redis",
  file: "on this replica",
  memory: "on this replica, until it restarts",
};
