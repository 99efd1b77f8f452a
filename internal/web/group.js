
const maxGroups = 11;

// groupsOf returns how the rows of a place are put together: the groups that ever held
// most, and one of all others. of has the group of each row, -1 for those elsewhere.
function groupsOf(model, place, by) {
  const meta = model.meta, c = model.changes, of = new Int32Array(model.rows).fill(-1);
  const column = by === "stack" ? meta.rows.title : meta.rows[by];
  const index = new Map(), all = [];
  for (let row = 0; row < model.rows; row++) {
    if (model.place[row] !== place) continue;
    let name = model.text(column[row]);
    if (!name) name = by === "category" || by === "module" ? "[" + model.text(meta.rows.cause[row]) + "]" : "not known";
    if (!index.has(name)) {
      index.set(name, all.length);
      all.push({ name });
    }
    of[row] = index.get(name);
  }
  const now = new Float64Array(all.length), most = new Float64Array(all.length), rows = c.row, more = c.bytes;
  for (let d = 0; d < rows.length; d++) {
    const g = of[rows[d]];
    if (g >= 0 && (now[g] += more[d]) > most[g]) most[g] = now[g];
  }
  const order = all.map((_, i) => i).filter((i) => most[i] > 0).sort((a, b) => most[b] - most[a] || (all[a].name < all[b].name ? -1 : 1));
  const kept = order.length > maxGroups + 1 ? order.slice(0, maxGroups) : order;
  const groups = kept.map((i, n) => ({ name: all[i].name, most: most[i], colour: hues[n % hues.length] }));
  const number = new Int32Array(all.length).fill(kept.length);
  kept.forEach((i, n) => { number[i] = n; });
  const rest = order.length - kept.length;
  if (rest > 0) groups.push({ name: rest + " others", most: 0, other: true });
  for (let row = 0; row < model.rows; row++) if (of[row] >= 0) of[row] = Math.min(number[of[row]], groups.length - 1);
  return { groups, of };
}

const colourOf = (g) => g.other ? otherColour() : g.colour;

// totalOf returns a place's total at each instant.
function totalOf(model, place) {
  const { n, to, row, bytes } = model.changes, of = model.place, out = new Float64Array(n);
  let sum = 0;
  for (let i = 0, d = 0; i < n; i++) {
    for (const end = to[i]; d < end; d++) if (of[row[d]] === place) sum += bytes[d];
    out[i] = sum;
  }
  return out;
}

// choose returns the instants to draw of those between two times: each, or of each of so
// many parts of the time the ones with the lowest and the highest total, and the last.
function choose(model, total, from, to, parts) {
  const time = model.changes.time, first = Math.max(0, last(time, from)), end = last(time, to) + 1, out = [];
  if (end - first <= 4 * parts) {
    for (let i = first; i < end; i++) out.push(i);
    return { instants: out, all: true };
  }
  const width = (to - from) / parts;
  for (let i = first; i < end;) {
    const until = from + (Math.floor((time[i] - from) / width) + 1) * width;
    let low = i, high = i, at = i;
    for (i++; i < end && time[i] < until; i++) {
      if (total[i] < total[low]) low = i;
      if (total[i] > total[high]) high = i;
      at = i;
    }
    for (const x of [Math.min(low, high), Math.max(low, high), at]) if (out[out.length - 1] !== x) out.push(x);
  }
  return { instants: out, all: false };
}

// stacked returns what uPlot draws: times in seconds, and for each group the sum of it
// and those below.
function stacked(model, grouped, total, from, to, parts) {
  const { instants, all } = choose(model, total, from, to, parts), time = model.changes.time, n = grouped.groups.length;
  const xs = [from / 1e9], ys = grouped.groups.map(() => []), now = new Float64Array(n);
  const first = instants.length ? instants[0] : 0;
  const held = model.at(Math.min(first, last(time, from)));
  for (let row = 0; row < model.rows; row++) if (grouped.of[row] >= 0) now[grouped.of[row]] += held[row];
  const { to: ends, row: rows, bytes: more } = model.changes, of = grouped.of;
  let high = 0;
  const put = () => { let sum = 0; for (let g = 0; g < n; g++) ys[g].push(sum += now[g]); if (sum > high) high = sum; };
  put();
  let at = last(time, from) + 1;
  for (const i of instants) {
    if (i < at) continue;
    for (let d = at ? ends[at - 1] : 0, end = ends[i]; d < end; d++) { const g = of[rows[d]]; if (g >= 0) now[g] += more[d]; }
    at = i + 1;
    xs.push(time[i] / 1e9);
    put();
  }
  xs.push(to / 1e9);
  put();
  return { data: [xs, ...ys], high, all };
}
