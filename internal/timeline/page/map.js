
const rowHeight = 15, rowGap = 3;

// A Map draws where memory lay: segments one after the other, by process and address, as
// lines of a page.
class AddressMap {
  constructor(model) {
    this.model = model; this.canvas = $("map"); this.at = -1; this.boxes = [];
    this.canvas.addEventListener("mousemove", (e) => this.pointer(e));
    this.canvas.addEventListener("click", (e) => this.pointer(e));
    this.canvas.addEventListener("keydown", (e) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[e.key];
      if (!by || !this.boxes.length) return;
      e.preventDefault();
      this.select(Math.min(Math.max(this.at + by, 0), this.boxes.length - 1));
    });
    new ResizeObserver(() => { if (this.state && this.width !== this.canvas.clientWidth) this.draw(); }).observe(this.canvas);
    dark.addEventListener("change", () => this.state && this.draw());
  }
  // show draws the map of a place at a time, or at the moment before of which it is known.
  show(place, grouped, time, held) {
    const l = this.model.lives, rows = this.model.meta.rows;
    let at = time;
    if (l.until > 0 && time < l.until) at = l.moments[Math.max(0, last(l.moments, time))];
    const segments = [], tensors = [];
    for (let i = 0, end = last(l.begin, at) + 1; i < end; i++) {
      if (l.end[i] <= at || this.model.place[l.row[i]] !== place) continue;
      const x = { row: l.row[i], from: l.from[i], to: l.from[i] + l.size[i], process: rows.process[l.row[i]] };
      if (l.tensor[i]) tensors.push(x);
      else { x.pool = this.model.text(rows.cause[x.row]) === "cached, unused"; x.pages = this.model.text(rows.api[x.row]) === "cuMemCreate"; segments.push(x); }
    }
    const order = (a, b) => a.process - b.process || a.from - b.from;
    segments.sort(order); tensors.sort(order);
    const merged = [];
    for (const s of segments) {
      const before = merged[merged.length - 1];
      if (before && before.pages && s.pages && before.to === s.from && before.process === s.process && before.pool === s.pool && (s.pool || before.row === s.row)) before.to = s.to;
      else merged.push({ ...s, blocks: [] });
    }
    let j = 0, used = 0, free = 0, gaps = 0, largest = 0, reserved = 0, others = 0, pools = 0;
    for (const s of merged) {
      while (j < tensors.length && order(tensors[j], s) < 0) j++;
      if (!s.pool) { s.blocks.push(s); others += s.to - s.from; continue; }
      pools++;
      reserved += s.to - s.from;
      let end = s.from;
      const gap = (to) => { if (to > end) { s.blocks.push({ from: end, to, row: -1, segment: s }); gaps++; free += to - end; largest = Math.max(largest, to - end); } };
      for (; j < tensors.length && tensors[j].process === s.process && tensors[j].from < s.to; j++) {
        gap(tensors[j].from);
        s.blocks.push(tensors[j]); used += tensors[j].to - tensors[j].from;
        end = Math.max(end, tensors[j].to);
      }
      gap(s.to);
    }
    const text = [];
    if (pools) text.push(`${count(pools, "segment")} of PyTorch: ${bytes(reserved)}, of which ${bytes(used)} in tensors and ${bytes(free)} free in ${count(gaps, "piece")}, the largest ${bytes(largest)}.`);
    if (others) text.push(`${count(merged.length - pools, pools ? "other allocation" : "allocation")}: ${bytes(others)}.`);
    let elsewhere = -used - free - others;
    for (let row = 0; row < this.model.rows; row++) if (this.model.place[row] === place && ["allocations", "tensors", "cached, unused"].includes(this.model.text(rows.cause[row]))) elsewhere += held[row];
    if (elsewhere > 0 && at === time) text.push(`${bytes(elsewhere)} more of allocations lie at no address: physical memory that is mapped nowhere, or arrays.`);
    if (at !== time) text.push(`This is the map of ${duration(at)}: that of each moment would have been too much.`);
    $("maptext").textContent = text.join(" ") || "No memory with an address.";
    this.canvas.hidden = !merged.length;
    $("block").textContent = "";
    this.state = merged; this.grouped = grouped; this.at = -1;
    this.draw();
  }
  draw() {
    const W = this.canvas.clientWidth, merged = this.state, total = merged.reduce((n, s) => n + s.to - s.from, 0);
    this.width = W;
    this.boxes = [];
    if (!total || !W) return;
    const lines = Math.min(36, Math.max(3, Math.ceil(total / 2 ** 30 * 4), Math.ceil(merged.length / 60))), scale = W * lines / total;
    let x = 0;
    for (const s of merged) {
      const begin = x;
      for (const b of s.blocks) this.boxes.push({ b, s, x: begin + (b.from - s.from) * scale, w: Math.min(b.to, s.to) * scale - b.from * scale });
      x += (s.to - s.from) * scale;
    }
    const H = lines * (rowHeight + rowGap) + rowGap, ratio = devicePixelRatio || 1, ctx = this.canvas.getContext("2d");
    this.canvas.width = W * ratio; this.canvas.height = H * ratio; this.canvas.style.height = H + "px";
    ctx.scale(ratio, ratio);
    ctx.fillStyle = theme("back"); ctx.fillRect(0, 0, W, H);
    this.W = W;
    for (const box of this.boxes) this.fill(ctx, box, box.b.row < 0 ? theme("free") : colourOf(this.grouped.groups[this.grouped.of[box.b.row]] || { other: true }));
    // A segment begins at a line.
    ctx.fillStyle = theme("fore");
    x = 0;
    for (const s of merged) { const line = Math.floor(x / W); ctx.fillRect(x - line * W, line * (rowHeight + rowGap) + rowGap - 1, 1, rowHeight + 2); x += (s.to - s.from) * scale; }
    if (this.at >= 0) {
      ctx.strokeStyle = theme("chosen"); ctx.lineWidth = 2;
      this.pieces(this.boxes[this.at], (px, py, w) => ctx.strokeRect(px + 1, py + 1, Math.max(w - 2, 2), rowHeight - 2));
    }
  }
  // pieces calls f for the part of a box on each line.
  pieces(box, f) {
    for (let x = box.x, left = box.w; left > 1e-6;) {
      const line = Math.floor(x / this.W + 1e-9), on = Math.max(0, x - line * this.W), w = Math.min(left, this.W - on);
      f(on, line * (rowHeight + rowGap) + rowGap, w);
      x += Math.max(w, 1e-6); left -= Math.max(w, 1e-6);
    }
  }
  fill(ctx, box, colour) { ctx.fillStyle = colour; this.pieces(box, (x, y, w) => ctx.fillRect(x, y, Math.max(w - (w > 3 ? 0.5 : 0), 0.3), rowHeight)); }
  pointer(e) {
    const r = this.canvas.getBoundingClientRect(), line = Math.floor((e.clientY - r.top) / (rowHeight + rowGap)), x = line * this.W + e.clientX - r.left;
    let low = 0, high = this.boxes.length;
    while (low < high) { const mid = (low + high) >>> 1; if (this.boxes[mid].x <= x) low = mid + 1; else high = mid; }
    if (low > 0 && low - 1 !== this.at) this.select(low - 1);
  }
  select(i) {
    this.at = i;
    this.draw();
    const { b, s } = this.boxes[i], rows = this.model.meta.rows, where = `0x${b.from.toString(16)} to 0x${b.to.toString(16)}`;
    const what = b.row < 0 ? "free, in a segment of " + bytes(s.to - s.from) : `${this.model.text(rows.owner[b.row])} ${this.model.text(rows.category[b.row]) || this.model.text(rows.cause[b.row])}: ${this.model.text(rows.title[b.row])}`;
    $("block").textContent = `${bytes(b.to - b.from)} at ${where}, ${this.model.text(s.process)}: ${what}`;
  }
}
