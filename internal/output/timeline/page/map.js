
const rowHeight = 15, rowGap = 3, axisWidth = 64;

const freed = meanings["cached, unused"];

// A Map draws where memory lay: segments one after the other, by process and address, as
// lines of a page.
class AddressMap {
  constructor(model) {
    this.model = model; this.canvas = $("map"); this.at = -1; this.boxes = []; this.total = 0;
    this.canvas.addEventListener("mousemove", (e) => this.pointer(e));
    this.canvas.addEventListener("pointermove", (e) => { if (e.pointerType === "mouse" && this.at >= 0) tipAt(e, ...$("block").textContent.split(/(?<=\)): /)); });
    this.canvas.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    this.canvas.addEventListener("click", (e) => this.pointer(e));
    this.canvas.addEventListener("keydown", (e) => {
      const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10 }[e.key], zoom = { "+": 2, "=": 2, "-": 0.5, 0: 0 }[e.key];
      if (e.ctrlKey || e.metaKey || e.altKey || !this.boxes.length || by === undefined && zoom === undefined) return;
      e.preventDefault();
      if (by) return this.select(Math.min(Math.max(this.at + by, 0), this.boxes.length - 1));
      const about = this.at >= 0 ? this.boxes[this.at].at + this.boxes[this.at].size / 2 : this.from + this.width / 2;
      this.view(about, zoom ? this.width / zoom : this.total, 0.5);
    });
    this.canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return; // else the page scrolls
      e.preventDefault();
      const part = this.part(e.clientX, e.clientY);
      this.view(this.from + part * this.width, this.width * (e.deltaY > 0 ? 1.25 : 0.8), part);
    }, { passive: false });
    onFingers(this.canvas, (scale, from, to) => this.view(this.from + this.part(from.x, from.y) * this.width, this.width / scale, this.part(to.x, to.y)));
    new ResizeObserver(() => { if (this.W !== this.canvas.clientWidth - axisWidth) this.draw(); }).observe(this.canvas);
    dark.addEventListener("change", () => this.draw());
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
    this.grouped = grouped; this.at = -1;
    // Boxes are one after the other, from 0 to total, as if nothing lay between segments.
    const before = this.total;
    this.boxes = []; this.starts = []; this.total = 0;
    for (const s of merged) {
      for (const b of s.blocks) this.boxes.push({ b, s, at: this.total + b.from - s.from, size: Math.min(b.to, s.to) - b.from });
      this.starts.push(this.total);
      this.total += s.to - s.from;
    }
    this.lines = Math.min(36, Math.max(3, Math.ceil(this.total / 2 ** 30 * 4), Math.ceil(merged.length / 60)));
    if (this.total !== before) { this.from = 0; this.width = this.total; }
    this.explain();
    this.draw();
  }
  // part returns where a point of the window is, from 0 at the map's beginning to 1 at its end.
  part(x, y) {
    const r = this.canvas.getBoundingClientRect(), line = Math.min(Math.max(Math.floor((y - r.top) / (rowHeight + rowGap)), 0), this.lines - 1);
    return (line + Math.min(Math.max((x - r.left - axisWidth) / this.W, 0), 1)) / this.lines;
  }
  // view shows so many bytes, of which the one at an offset lies at a part of the map.
  view(at, width, part) {
    if (!this.total || this.W <= 0) return;
    const least = 8 * this.W * this.lines; // 8 bytes a pixel
    this.width = Math.min(Math.max(width, least), this.total);
    this.from = Math.min(Math.max(0, at - part * this.width), this.total - this.width);
    this.draw();
  }
  draw() {
    const W = this.W = this.canvas.clientWidth - axisWidth;
    if (!this.total || W <= 0) { $("mapspan").textContent = ""; return; }
    $("mapspan").textContent = (this.width < this.total ? `${bytes(this.width)} of ${bytes(this.total)} in view` : `All ${bytes(this.total)} in view`) + `, ${bytes(this.width / this.lines)} a line.`;
    const H = this.lines * (rowHeight + rowGap) + rowGap, ratio = devicePixelRatio || 1, ctx = this.canvas.getContext("2d");
    this.canvas.width = (W + axisWidth) * ratio; this.canvas.height = H * ratio; this.canvas.style.height = H + "px";
    ctx.scale(ratio, ratio);
    ctx.fillStyle = theme("back"); ctx.fillRect(0, 0, W + axisWidth, H);
    this.drawAxis(ctx);
    ctx.translate(axisWidth, 0);
    const colours = this.grouped.groups.map(colourOf), end = this.from + this.width;
    for (let i = Math.max(0, this.boxAt(this.from)); i < this.boxes.length && this.boxes[i].at < end; i++) {
      const box = this.boxes[i];
      ctx.fillStyle = box.b.row < 0 ? colourOf(freed) : colours[this.grouped.of[box.b.row]] || otherColour;
      this.pieces(box, (x, y, w) => ctx.fillRect(x, y, Math.max(w - (w > 3 ? 0.5 : 0), 0.3), rowHeight));
    }
    ctx.fillStyle = theme("fore");
    for (const at of this.starts) {
      const x = (at - this.from) / this.width * this.lines, line = Math.floor(x);
      if (x >= 0 && line < this.lines) ctx.fillRect((x - line) * W, line * (rowHeight + rowGap) + rowGap - 1, 1, rowHeight + 2);
    }
    if (this.at >= 0) {
      ctx.strokeStyle = theme("chosen"); ctx.lineWidth = 2;
      this.pieces(this.boxes[this.at], (px, py, w) => ctx.strokeRect(px + 1, py + 1, Math.max(w - 2, 2), rowHeight - 2));
    }
  }
  // drawAxis says what comes before a line, in the map's order.
  drawAxis(ctx) {
    ctx.fillStyle = theme("quiet");
    ctx.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    ctx.textAlign = "right"; ctx.textBaseline = "middle";
    for (let line = 0; line < this.lines; line += this.lines > 12 ? 4 : 1) ctx.fillText(bytes(this.from + line * this.width / this.lines), axisWidth - 6, line * (rowHeight + rowGap) + rowGap + rowHeight / 2);
  }
  // explain says what the colours are.
  explain() {
    const { groups, of } = this.grouped, all = new Set(this.boxes.map(({ b }) => b.row < 0 ? -2 : of[b.row])), entry = (text, colour) => swatched("span", text, colour), out = [];
    groups.forEach((g, i) => { if (all.has(i)) out.push(entry(g.name, colourOf(g))); });
    if (all.has(-2)) out.push(entry("free, in a segment", colourOf(freed)));
    if (all.has(-1)) out.push(entry("not what is chosen above", otherColour));
    const begins = entry("a segment or an allocation begins", "var(--fore)");
    begins.firstChild.classList.add("line");
    $("mapkey").replaceChildren(...out, ...all.size ? [begins] : []);
  }
  // pieces calls f for the part of a box on each line.
  pieces(box, f) {
    const scale = this.W * this.lines / this.width, end = Math.min((box.at + box.size - this.from) * scale, this.W * this.lines);
    for (let x = Math.max((box.at - this.from) * scale, 0); end - x > 1e-6;) {
      const line = Math.floor(x / this.W + 1e-9), on = Math.max(0, x - line * this.W), w = Math.min(end - x, this.W - on);
      f(on, line * (rowHeight + rowGap) + rowGap, w);
      x += Math.max(w, 1e-6);
    }
  }
  // boxAt returns the last box that begins at or before an offset, -1 for none.
  boxAt(offset) {
    let low = 0, high = this.boxes.length;
    while (low < high) { const mid = (low + high) >>> 1; if (this.boxes[mid].at <= offset) low = mid + 1; else high = mid; }
    return low - 1;
  }
  pointer(e) {
    const i = this.boxAt(this.from + this.part(e.clientX, e.clientY) * this.width);
    if (i >= 0 && i !== this.at) this.select(i);
  }
  select(i) {
    this.at = i;
    const { b, s, at, size } = this.boxes[i], rows = this.model.meta.rows, where = `0x${b.from.toString(16)} to 0x${b.to.toString(16)}`;
    if (at + size <= this.from || at >= this.from + this.width) this.view(at + size / 2, this.width, 0.5);
    else this.draw();
    const what = b.row < 0 ? "free, in a segment of " + bytes(s.to - s.from) : `${this.model.text(rows.owner[b.row])} ${this.model.text(rows.category[b.row]) || this.model.text(rows.cause[b.row])}: ${this.model.text(rows.title[b.row])}`;
    $("block").textContent = `${bytes(b.to - b.from)} at ${where}, ${this.model.text(s.process)}: ${what}`;
  }
}
