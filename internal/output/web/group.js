
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

// stacked returns what uPlot draws of the instants between two times: times in seconds, and
// for each group the sum of it and those below. It has each instant, or of each of so many
// parts of the time the ones with the lowest and the highest total, and the last.
function stacked(model, grouped, from, to, parts) {
  const { time, to: ends, row: rows, bytes: more } = model.changes, of = grouped.of, n = grouped.groups.length;
  const before = last(time, from), end = last(time, to) + 1, all = end - before <= 4 * parts, width = (to - from) / parts;
  const xs = [], ys = grouped.groups.map(() => []), now = new Float64Array(n), lowest = new Float64Array(n), highest = new Float64Array(n);
  let high = 0, total = 0;
  const put = (t, held) => {
    let sum = 0;
    xs.push(t / 1e9);
    for (let g = 0; g < n; g++) ys[g].push(sum += held[g]);
    if (sum > high) high = sum;
  };
  const held = model.at(before);
  for (let row = 0; row < model.rows; row++) if (of[row] >= 0) { now[of[row]] += held[row]; total += held[row]; }
  put(from, now);
  for (let i = before + 1, d = i ? ends[before] : 0; i < end;) {
    const first = i, until = all ? 0 : from + (Math.floor((time[i] - from) / width) + 1) * width;
    let low = i, top = i, least = 0, most = 0;
    do {
      for (const to = ends[i]; d < to; d++) { const g = of[rows[d]]; if (g >= 0) { now[g] += more[d]; total += more[d]; } }
      if (i === first || total < least) { low = i; least = total; lowest.set(now); }
      if (i === first || total > most) { top = i; most = total; highest.set(now); }
      i++;
    } while (i < end && time[i] < until);
    if (low < top) put(time[low], lowest);
    put(time[top], highest);
    if (low > top) put(time[low], lowest);
    if (Math.max(low, top) < i - 1) put(time[i - 1], now);
  }
  put(to, now);
  return { data: [xs, ...ys], high, all };
}
