// Numbers with their units, and times as people read them.

const whole = new Intl.NumberFormat("en-US");
const NEVER = 4294967295;

export const NONE = "–";

export function count(n) {
  return n === null || n === undefined ? NONE : whole.format(n);
}

/** At most four characters and a unit of thousands. */
export function short(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return NONE;
  for (const [unit, size] of [["G", 1e9], ["M", 1e6], ["k", 1e4]]) {
    if (n >= size) {
      const scale = unit === "k" ? 1e3 : size;
      return `${digits(n / scale)} ${unit}`;
    }
  }
  return n >= 100 || Number.isInteger(n) ? whole.format(Math.round(n)) : n.toFixed(1);
}

function digits(n) {
  return n >= 100 ? String(Math.round(n)) : n.toFixed(1);
}

export function rate(n) {
  return n === null ? NONE : `${short(n)}/s`;
}

export function bytes(n) {
  if (n === null || n === undefined) return NONE;
  let [value, unit] = [n, 0];
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  while (value >= 1024 && unit < units.length - 1) [value, unit] = [value / 1024, unit + 1];
  return `${unit === 0 ? whole.format(Math.round(value)) : digits(value)} ${units[unit]}`;
}

export function byteRate(n) {
  return n === null ? NONE : `${bytes(n)}/s`;
}

export function percent(share) {
  return share === null ? NONE : `${(share * 100).toFixed(share < 0.1 ? 1 : 0)} %`;
}

/** Seconds as µs, ms or s. */
export function seconds(s) {
  if (s === null || s === undefined) return NONE;
  if (s < 0.001) return `${Math.round(s * 1e6)} µs`;
  if (s < 1) return `${(s * 1000).toFixed(s < 0.01 ? 2 : s < 0.1 ? 1 : 0)} ms`;
  return `${s.toFixed(s < 10 ? 2 : 1)} s`;
}

/** A span of milliseconds in its two largest units. */
export function span(ms) {
  if (ms === null || ms === undefined) return NONE;
  const all = Math.max(0, Math.round(ms / 1000));
  if (all < 1) return ms < 1 ? "0 s" : `${Math.round(ms)} ms`;
  const parts = [[Math.floor(all / 86400), "d"], [Math.floor(all / 3600) % 24, "h"], [Math.floor(all / 60) % 60, "min"], [all % 60, "s"]];
  const first = parts.findIndex(([n]) => n > 0);
  return parts.slice(first, first + 2).filter(([n]) => n > 0).map(([n, unit]) => `${n} ${unit}`).join(" ");
}

export function ago(at_ms) {
  if (!at_ms) return NONE;
  const passed = Date.now() - at_ms;
  return passed < 1000 ? "now" : `${span(passed)} ago`;
}

/** Until a time: what is left, or how long it is over. */
export function left(at_ms) {
  if (at_ms === null || at_ms === undefined) return NONE;
  const ms = at_ms - Date.now();
  return ms >= 0 ? `in ${span(ms)}` : `${span(-ms)} ago`;
}

export function expiry(sec) {
  if (sec === NEVER) return "never";
  return sec === 0 ? "with its connection" : span(sec * 1000);
}

export function clock(at) {
  return new Date(at).toLocaleTimeString("en-GB");
}

export function moment(at_ms) {
  if (!at_ms) return NONE;
  const at = new Date(at_ms);
  const two = (n) => String(n).padStart(2, "0");
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clock(at)}`;
}

export function words(text) {
  return text.replaceAll("_", " ");
}

/** The first characters of an id that nobody reads. */
export function head(id) {
  return id.length > 12 ? `${id.slice(0, 12)}…` : id;
}
