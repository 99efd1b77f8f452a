
const $ = (id) => document.getElementById(id);

// make returns an element with text, which is never markup.
function make(name, text, className) {
  const e = document.createElement(name);
  if (text !== undefined) e.textContent = text;
  if (className) e.className = className;
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

// Hues of Okabe and Ito's and Tableau's palettes, which people of all sights tell apart
// as far as can be, in an order in which neighbours differ.
const hues = ["#4e79a7", "#f28e2b", "#59a14f", "#e15759", "#76b7b2", "#edc948", "#b07aa1", "#9c755f", "#ff9da7", "#7a7fd1", "#d4a6c8", "#8cd17d"];
const otherColour = () => dark.matches ? "#6b7480" : "#b3bac2";
const idleColour = () => dark.matches ? "#3f4751" : "#dde1e6";
