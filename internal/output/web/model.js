
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
    // The peak is the moment of the highest total at which least of it was idle: memory
    // is taken before it is used.
    const places = meta.places.length, held = new Float64Array(this.rows), sums = new Float64Array(places), idle = new Float64Array(places);
    const peak = new Float64Array(places), at = new Uint32Array(places), any = new Uint8Array(places), least = new Float64Array(places);
    const idles = Uint8Array.from(meta.rows.cause, (c) => ["driver rounding", "cached, unused", "pool"].includes(meta.strings[c]) ? 1 : 0);
    const { n, to, row: rows, bytes: more } = changes, place = this.place;
    let due = 0;
    for (let i = 0, d = 0; i < n; i++) {
      if (d >= due) { this.keys.push({ instant: i, held: held.slice() }); due = d + this.every; }
      const from = d, end = to[i];
      for (; d < end; d++) {
        const row = rows[d], p = place[row], by = more[d];
        held[row] += by;
        sums[p] += by;
        if (idles[row]) idle[p] += by;
      }
      for (let k = from; k < end; k++) {
        const p = place[rows[k]], sum = sums[p];
        any[p] = 1;
        if (sum > peak[p] || sum === peak[p] && idle[p] < least[p]) { peak[p] = sum; at[p] = i; least[p] = idle[p]; }
      }
    }
    this.totals = meta.places.map((_, p) => ({ peak: peak[p], at: at[p], any: any[p] > 0 }));
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
  // stack returns the frames of a row, its leaf first.
  stack(row) {
    const out = [];
    for (let n = this.meta.rows.node[row]; n; n = this.meta.nodes[n][0]) out.push(this.meta.nodes[n][1]);
    return out;
  }
}
