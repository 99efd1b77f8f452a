
// outlineDash tells outlines apart.
const outlineDash = (n) => [[7, 4], [2, 3], [12, 3, 2, 3], [1, 5]][n % 4];

// An Outline is a curve over that of a place: sizes in bytes, each from a time on.
class Outline {
  constructor(model, { name, place, process, times, bytes, end }) {
    this.name = name; this.place = place; this.times = times; this.end = end || model.meta.end;
    this.bytes = process < 0 ? bytes : addOthers(model, place, process, times, bytes);
  }
  // at returns the size at a time.
  at(t) { const i = last(this.times, t); return i < 0 || t > this.end ? 0 : this.bytes[i]; }
  highest(from, to) {
    let most = this.at(from);
    for (let i = last(this.times, from) + 1; i < this.times.length && this.times[i] <= to; i++) most = Math.max(most, this.bytes[i]);
    return most;
  }
}

// addOthers adds to sizes what a place had besides the segments of PyTorch in a process.
function addOthers(model, place, process, times, bytes) {
  const { rows } = model.meta, { time, to, row, bytes: more } = model.changes;
  const other = model.place.map((p, r) => p === place && !(rows.process[r] === process && ["tensors", "cached, unused", "calls under way"].includes(model.text(rows.cause[r]))));
  let i = 0, d = 0, sum = 0;
  return bytes.map((v, n) => {
    for (; i < time.length && time[i] <= times[n]; i++) for (; d < to[i]; d++) if (other[row[d]]) sum += more[d];
    return v + sum;
  });
}

// last returns the last index at which a sorted array is at most v, -1 for none.
function last(sorted, v) {
  let low = 0, high = sorted.length;
  while (low < high) {
    const mid = (low + high) >>> 1;
    if (sorted[mid] <= v) low = mid + 1; else high = mid;
  }
  return low - 1;
}

// A Model is all that the page knows.
class Model {
  constructor(meta, changes, lives) {
    this.meta = meta; this.changes = changes; this.lives = lives;
    this.rows = meta.rows.place.length;
    this.place = Int32Array.from(meta.rows.place);
    // What each row holds is kept at every so many deltas, so that a moment is near one.
    this.every = Math.max(1 << 15, this.rows * 8);
    this.keys = []; // {instant, held}: held before that instant
    this.idles = Uint8Array.from(meta.rows.cause, (c) => ["driver rounding", "cached, unused", "pool", "calls under way"].includes(meta.strings[c]) ? 1 : 0);
    const held = new Float64Array(this.rows), { n, to, row, bytes } = changes;
    for (let i = 0, d = 0, due = 0; i < n; i++) {
      if (d >= due) { this.keys.push({ instant: i, held: held.slice() }); due = d + this.every; }
      for (const end = to[i]; d < end; d++) held[row[d]] += bytes[d];
    }
    this.totals = this.peaks(this.place, meta.places.length);
    this.python = meta.frames.some((_, i) => isPython(this.frame(i)));
    this.outlines = (meta.outlines || []).map((o) => new Outline(this, o));
  }
  // peaks returns the peak of each of so many groups, of which of has the number of each row,
  // negative for none. It is the moment of the highest total at which least of it was idle: memory
  // is taken before it is used.
  peaks(of, groups) {
    const all = Array.from({ length: groups }, () => ({ peak: 0, at: 0, any: false, sum: 0, idle: 0, least: 0 })), { n, to, row, bytes } = this.changes;
    for (let i = 0, d = 0; i < n; i++) {
      const from = d, end = to[i];
      for (; d < end; d++) {
        const g = all[of[row[d]]];
        if (!g) continue;
        g.sum += bytes[d];
        if (this.idles[row[d]]) g.idle += bytes[d];
      }
      for (let k = from; k < end; k++) {
        const g = all[of[row[k]]];
        if (!g) continue;
        g.any = true;
        if (g.sum > g.peak || g.sum === g.peak && g.idle < g.least) { g.peak = g.sum; g.at = i; g.least = g.idle; }
      }
    }
    return all;
  }
  // at returns what each row holds at an instant, in an array that is its caller's.
  at(instant) {
    if (instant < 0 || !this.keys.length) return new Float64Array(this.rows);
    let k = this.keys.length - 1;
    while (this.keys[k].instant > instant) k--;
    const held = this.keys[k].held.slice();
    this.run(this.keys[k].instant, instant + 1, (row, by) => { held[row] += by; });
    return held;
  }
  // run calls f for the deltas of the instants [from, to).
  run(from, to, f) {
    const c = this.changes;
    for (let d = from ? c.to[from - 1] : 0, end = to ? c.to[to - 1] : 0; d < end; d++) f(c.row[d], c.bytes[d]);
  }
  text(i) { return this.meta.strings[i]; }
  frame(i) { const f = this.meta.frames[i]; return { short: this.text(f[0]), name: this.text(f[1]), where: this.text(f[2]) }; }
  // named returns a frame that has only a name.
  named(name) {
    const { frames, strings } = this.meta;
    let i = frames.findIndex((f) => !f[2] && this.text(f[1]) === name);
    if (i < 0) i = frames.push([strings.length, strings.length, 0]) - 1, strings.push(name);
    return i;
  }
  // matches returns which rows have a text in their stack, process, owner, module, operator or category.
  matches(text) {
    const has = this.meta.strings.map((s) => s.toLowerCase().includes(text.toLowerCase())), { frames, nodes, rows } = this.meta;
    const found = frames.map((f) => has[f[1]] || has[f[2]]), stack = new Uint8Array(nodes.length);
    for (let n = 1; n < nodes.length; n++) stack[n] = stack[nodes[n][0]] || found[nodes[n][1]] ? 1 : 0; // a node comes after its parent
    const columns = [rows.process, rows.owner, rows.module, rows.operator, rows.category, rows.cause, rows.title].filter(Boolean);
    return Uint8Array.from(rows.node, (n, row) => stack[n] || columns.some((c) => has[c[row]]) ? 1 : 0);
  }
  // stack returns the frames of a row, its leaf first.
  stack(row) {
    const out = [];
    for (let n = this.meta.rows.node[row]; n; n = this.meta.nodes[n][0]) out.push(this.meta.nodes[n][1]);
    return out;
  }
}
