
const maxGroups = 11;

// What memory is for has the same colour and place everywhere, and nothing else has that colour.
// What stays lies at the bottom, and what is in nobody's use on top: paler, in light and in dark.
const meanings = {
  context: { colour: "#4e79a7", rank: 0 }, "cuda context and driver": { colour: "#4b2f7a", rank: 0 }, code: { colour: "#9c755f", rank: 0 }, stream: { colour: "#7a7fd1", rank: 0 },
  "local memory": { colour: "#76b7b2", rank: 0 }, "allocated before attach": { colour: "#2a6a50", rank: 0 }, parameter: { colour: "#59a14f", rank: 0 },
  optimizer_state: { colour: "#edc948", rank: 0 }, gradient: { colour: "#b07aa1", rank: 1 }, input: { colour: "#e15759", rank: 2 }, activation: { colour: "#f28e2b", rank: 2 },
  loaded: { colour: "#008000", rank: 2 }, "buckets (DDP)": { colour: "#900070", rank: 1 }, "optimizer temporaries": { colour: "#a80018", rank: 2 }, result: { colour: "#6848c8", rank: 2 }, "workspace (cuDNN)": { colour: "#f088f8", rank: 2 },
  temporary: { colour: "#ff9da7", rank: 2 }, unknown: { colour: "#b8ab15", rank: 2 }, "workspace (cuBLAS)": { colour: "#8a6d3b", rank: 2 }, tensors: { colour: "#8cd17d", rank: 2 }, allocations: { colour: "#26a9f1", rank: 2 },
  video: { colour: "#33cfef", rank: 2 }, graphics: { colour: "#c6519c", rank: 2 }, opencl: { colour: "#d0897b", rank: 2 }, event: { colour: "#ae69d6", rank: 0 }, graph: { colour: "#54876c", rank: 0 },
  "shared, its owner gone": { colour: "#bca8c9", rank: 2 }, "cause not known": { colour: "#7c5e74", rank: 2 }, "calls under way": { colour: "#ccb897", rank: 3 },
  "cached, unused": { idle: ["#dde1e6", "#3f4751"], rank: 4 }, pool: { idle: ["#abd0ec", "#24508a"], rank: 4 }, "driver rounding": { idle: ["#efd6a4", "#5b4626"], rank: 4 },
};
const meaningOf = (name) => meanings[name.replace(/^\[|\]$/g, "")] || { rank: 2 };

// peaksOf returns the most that each of n groups of rows held at an instant, and at which.
function peaksOf(model, of, n) {
  const now = new Float64Array(n), most = new Float64Array(n), at = new Uint32Array(n), { n: instants, to, row: rows, bytes: more } = model.changes;
  for (let i = 0, d = 0; i < instants; i++) {
    const from = d, end = to[i];
    if (end === from + 1) { // most are
      const g = of[rows[d]];
      if (g >= 0 && (now[g] += more[d]) > most[g]) { most[g] = now[g]; at[g] = i; }
      d = end;
      continue;
    }
    for (; d < end; d++) { const g = of[rows[d]]; if (g >= 0) now[g] += more[d]; }
    for (let k = from; k < end; k++) { const g = of[rows[k]]; if (g >= 0 && now[g] > most[g]) { most[g] = now[g]; at[g] = i; } }
  }
  return { most, at };
}

// groupsOf returns how the rows of a place are put together: the groups that ever held
// most, and one of all others, among them those that never held a thousandth of the place's peak or
// a MiB. of has the group of each row, -1 for those elsewhere.
function groupsOf(model, place, by) {
  const meta = model.meta, of = new Int32Array(model.rows).fill(-1);
  const column = by === "stack" ? meta.rows.title : meta.rows[by];
  const index = new Map(), all = [];
  for (let row = 0; row < model.rows; row++) {
    if (model.place[row] !== place) continue;
    let name = model.text(column[row]);
    if (!name) name = ["category", "module", "operator"].includes(by) ? "[" + model.text(meta.rows.cause[row]) + "]" : "not known";
    if (!index.has(name)) {
      index.set(name, all.length);
      all.push({ name });
    }
    of[row] = index.get(name);
  }
  const { most, at } = peaksOf(model, of, all.length);
  const order = all.map((_, i) => i).filter((i) => most[i] > 0).sort((a, b) => most[b] - most[a] || (all[a].name < all[b].name ? -1 : 1));
  const least = Math.max(2 ** 20, model.totals[place].peak / 1000);
  const large = order.filter((i) => most[i] >= least).length || order.length;
  const kept = order.slice(0, large === order.length && large <= maxGroups + 1 ? large : Math.min(large, maxGroups));
  kept.sort((a, b) => meaningOf(all[a].name).rank - meaningOf(all[b].name).rank);
  let next = 0;
  const groups = kept.map((i) => {
    const is = meaningOf(all[i].name);
    return { name: all[i].name, most: most[i], at: at[i], idle: is.idle, colour: is.colour || is.idle || hues[next++] };
  });
  const number = new Int32Array(all.length).fill(kept.length);
  kept.forEach((i, n) => { number[i] = n; });
  const rest = order.length - kept.length;
  if (rest > 0) groups.push({ name: rest === 1 ? "1 other" : rest + " others", most: 0, other: true });
  for (let row = 0; row < model.rows; row++) if (of[row] >= 0) of[row] = Math.min(number[of[row]], groups.length - 1);
  // What was never more than nothing, as where the driver's figure is too small, is part of the last one:
  // of the others, of which no figure is shown, or of a group.
  if (order.length < all.length && !rest) {
    const drawn = peaksOf(model, of, groups.length);
    groups.forEach((g, i) => { if (!g.other) { g.most = drawn.most[i]; g.at = drawn.at[i]; } });
  }
  return { groups, of };
}

// narrow leaves out all groups but the one of a name, and all rows but those that are wanted.
function narrow(grouped, only, wanted) {
  const g = grouped.groups.findIndex((x) => x.name === only);
  return {
    groups: g < 0 ? grouped.groups : [grouped.groups[g]],
    of: grouped.of.map((x, row) => x < 0 || g >= 0 && x !== g || !wanted(row) ? -1 : g >= 0 ? 0 : x),
  };
}

// entryOf returns a group's entry of the legend: its name, and the most that it held.
function entryOf(g, at = "≤ ") {
  const s = make("span", undefined, "swatch"), out = [s, g.name + " "];
  s.style.setProperty("--c", colourOf(g));
  if (!g.other) out.push(make("span", at + bytes(g.most)));
  return out;
}

const colourOf = (g) => g.other ? otherColour : g.idle ? g.idle[dark.matches ? 1 : 0] : g.colour;

// stacked returns what uPlot draws of the instants between two times: times in seconds, and
// for each group the sum of it and those below. Of each of so many parts of the time it has
// one instant: the highest, and of these the one with the least that nobody uses. bands are
// the parts in which the total was lower too: from, to, lowest and highest.
function stacked(model, grouped, from, to, parts) {
  const { time, to: ends, row: rows, bytes: more } = model.changes, of = grouped.of, n = grouped.groups.length;
  const before = last(time, from), end = last(time, to) + 1, width = (to - from) / parts;
  const xs = [], ys = grouped.groups.map(() => []), now = new Float64Array(n), highest = new Float64Array(n), bands = [];
  const idle = grouped.groups.map((g) => g.idle ? 1 : 0);
  let high = 0, total = 0, unused = 0, all = true, left = null; // left: when a part ends whose last instant is not its highest
  const put = (t, held) => {
    let sum = 0;
    xs.push(Math.max(t / 1e9, xs.length ? xs[xs.length - 1] : 0));
    for (let g = 0; g < n; g++) ys[g].push(sum += held[g]);
    if (sum > high) high = sum;
  };
  const held = model.at(before);
  for (let row = 0; row < model.rows; row++) if (of[row] >= 0) { now[of[row]] += held[row]; total += held[row]; unused += held[row] * idle[of[row]]; }
  put(from, now);
  for (let i = before + 1, d = i ? ends[before] : 0; i < end;) {
    const first = time[i], part = Math.floor((first - from) / width), begin = from + part * width, until = begin + width;
    let some = 0, low = total, most = 0, least = 0;
    if (left !== null && left <= begin) { put(left, now); left = null; }
    do {
      const to = ends[i];
      let touched = false;
      for (; d < to; d++) {
        const g = of[rows[d]];
        if (g < 0) continue;
        const by = more[d];
        now[g] += by; total += by; unused += by * idle[g];
        touched = true;
      }
      if (touched) {
        if (total < low) low = total;
        if (!some || total > most || total === most && unused < least) {
          most = total; least = unused;
          for (let g = 0; g < n; g++) highest[g] = now[g];
        }
        some++;
      }
      i++;
    } while (i < end && time[i] < until);
    if (!some) continue;
    if (some === 1) { put(first, now); left = null; continue; }
    all = false;
    put(begin, highest);
    left = Math.min(until, to);
    if (low < most) bands.push([begin, left, low, most]);
  }
  if (left !== null) put(left, now);
  put(Math.min(to, model.meta.end), now);
  return { data: [xs, ...ys], high, all, bands };
}
