
const $ = (id) => document.getElementById(id);

// make returns an element with text, which is never markup.
function make(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
  return e;
}

// swatched returns an element whose text has a colour before it.
function swatched(name, text, colour) {
  const e = make(name), swatch = make("span", undefined, "swatch");
  swatch.style.setProperty("--c", colour);
  e.append(swatch, text);
  return e;
}

const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// bytes returns a number of bytes for people, with three digits, as package bytefmt does.
function bytes(n) {
  let v = Math.abs(n), u = 0;
  while (v >= 1023.5 && u < units.length - 1) { v /= 1024; u++; }
  const digits = u === 0 ? 0 : v < 9.995 ? 2 : v < 99.95 ? 1 : 0;
  return (n < 0 ? "−" : "") + v.toFixed(digits) + " " + units[u];
}

const signed = (n) => (n > 0 ? "+" : "") + bytes(n);
const count = (n, what) => n.toLocaleString("en-US") + " " + what + (n === 1 ? "" : "s");
const exactly = (n) => n.toLocaleString("en-US") + " bytes";

// duration returns nanoseconds for people, as far apart as step nanoseconds are.
function duration(ns, step) {
  const s = ns / 1e9;
  if (step === undefined) step = ns / 1000;
  const digits = Math.min(9, Math.max(0, -Math.floor(Math.log10(Math.max(step, 1) / 1e9) + 1e-9)));
  if (Math.abs(s) < 60) return s.toFixed(digits) + " s";
  const whole = Math.floor(s), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60;
  const sec = (s - 3600 * h - 60 * m).toFixed(digits).padStart(digits ? digits + 3 : 2, "0");
  return (h ? h + ":" + String(m).padStart(2, "0") : m) + ":" + sec;
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// Hues are of groups whose names mean nothing to this page, in an order in which neighbours
// differ. No meaning has one of these, and people tell all of them apart as far as can be.
const hues = ["#009eaf", "#eb6ca9", "#5a56c7", "#ad8604", "#148922", "#d58efe", "#ac3a58", "#989ef8", "#a34d16", "#9240a4", "#7d7413", "#fcaff9"];
const otherColour = "#8b949e";
