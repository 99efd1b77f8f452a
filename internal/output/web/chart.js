
// A Chart draws a place's memory over time, of the view [from, to] in nanoseconds.
class Chart {
  constructor(model, on) {
    this.model = model; this.on = on; // hover(), which ends it, or of a time, its instant and more; choose(instant, second, time), moved(), and time(ns, step) if it is not since the beginning
    this.time = on.time || duration;
    this.end = Math.max(model.meta.end, 1, ...model.outlines.map((o) => o.end));
    // What comes before the first change is not shown at first, if it is long.
    const first = model.changes.n ? model.changes.time[0] : 0;
    this.from = first > this.end / 8 ? Math.max(0, first - (this.end - first) / 40) : 0; this.to = this.end;
    this.marks = []; this.cursor = -1; this.chosen = []; // times
    this.box = $("chart");
    this.note = make("p", undefined, "quiet");
    this.note.append(make("span", undefined, "swatch paler"), "Paler: between the lowest and the highest within one pixel. Zooming in shows each change.");
    this.box.after(this.note);
    new ResizeObserver(() => this.resize()).observe(this.box);
    onFingers(this.box, (scale, from, to) => this.fingers(scale, from, to));
    dark.addEventListener("change", () => this.build());
  }
  show(place, grouped, peak) {
    this.place = place; this.grouped = grouped; this.peak = peak; this.whole = peak === this.model.totals[place];
    this.marks = marksOf(this.model, place, grouped, peak);
    this.build();
  }
  // follow shows a model that goes on where the last one ended: who sees the end goes along.
  follow(model, place, grouped, peak) {
    const width = this.to - this.from, along = this.to >= this.end, all = this.from <= 0, groups = (g) => g && g.groups.map((x) => x.name).join("\n");
    this.model = model; this.end = Math.max(model.meta.end, 1);
    if (along) { this.to = this.end; if (!all) this.from = this.end - width; }
    if (this.place !== place || groups(this.grouped) !== groups(grouped)) return this.show(place, grouped, peak);
    this.grouped = grouped; this.peak = peak; this.whole = peak === model.totals[place];
    this.marks = marksOf(model, place, grouped, this.peak);
    this.redraw();
  }
  size() { return { width: Math.max(260, this.box.clientWidth), height: innerWidth < 640 ? 260 : 380 }; }
  build() {
    if (!this.grouped) return;
    if (this.plot) this.plot.destroy();
    const groups = this.grouped.groups, line = theme("line"), ink = theme("quiet"), narrow = innerWidth < 640;
    const step = uPlot.paths.stepped({ align: 1 });
    const font = "12px system-ui, 'DejaVu Sans', sans-serif";
    this.compute();
    const round = [60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800], binary = [];
    for (let e = 1; e >= -9; e--) round.unshift(10 ** e, 2 * 10 ** e, 5 * 10 ** e);
    round.splice(round.indexOf(50), 1);
    round.sort((a, b) => a - b);
    for (let e = 0; e < 62; e++) binary.push(2 ** e);
    this.plot = new uPlot({
      ...this.size(), legend: { show: false }, padding: [this.marks.some((m) => m.kind === "step") ? 47 : 34, this.on.time ? 30 : 12, 0, 0],
      cursor: { y: false, drag: { x: true, y: false, setScale: false, dist: 4 }, points: { show: false } },
      scales: { x: { time: false, range: () => [this.from / 1e9, this.to / 1e9] }, y: { range: () => [0, Math.max(this.top() * 1.1, 1024)] } },
      axes: [
        { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, size: 34, incrs: round, space: narrow ? 70 : 90, values: (u, at, axis, space, incr) => at.map((v) => this.time(v * 1e9, incr * 1e9)) },
        { stroke: ink, font, grid: { stroke: line, width: 1 }, ticks: { stroke: line }, size: narrow ? 72 : 76, incrs: binary, space: 46, values: (u, at) => at.map(bytes) },
      ],
      series: [{}, ...groups.map((g, i) => ({
        paths: step, points: { show: false }, width: 1, stroke: i === groups.length - 1 ? theme("fore") : colourOf(g), fill: colourOf(g) + (i ? "" : "e6"),
      }))],
      bands: groups.slice(1).map((g, i) => ({ series: [i + 2, i + 1], fill: colourOf(g) + "e6" })),
      hooks: {
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => { if (u.select.width > 3) this.view(u.posToVal(u.select.left, "x") * 1e9, u.posToVal(u.select.left + u.select.width, "x") * 1e9); u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false); }],
        draw: [(u) => this.drawMarks(u)],
      },
    }, this.data, this.box);
    const over = this.plot.over;
    let down = 0;
    over.addEventListener("mousedown", (e) => { down = e.clientX; });
    over.addEventListener("click", (e) => {
      if (Math.abs(e.clientX - down) >= 4) return;
      const t = Math.round(this.plot.posToVal(e.clientX - over.getBoundingClientRect().left, "x") * 1e9), i = this.instantAt(t);
      this.on.choose(i, e.shiftKey, Math.max(t, this.model.changes.time[i]));
    });
    over.addEventListener("dblclick", () => this.view(0, this.end));
    over.addEventListener("mouseleave", () => this.on.hover());
    over.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.metaKey) return; // else the page scrolls
      e.preventDefault();
      this.zoom(e.deltaY > 0 ? 1.25 : 0.8, this.plot.posToVal(e.clientX - over.getBoundingClientRect().left, "x") * 1e9);
    }, { passive: false });
  }
  // outlined returns the outlines of the place, if nothing of it is left out.
  outlined() { return this.whole ? this.model.outlines.filter((o) => o.place === this.place) : []; }
  // top returns the highest that is drawn: the GPU's capacity, where more than half of it was held.
  top() { const { capacity } = this.model.meta.places[this.place]; return capacity < 2 * this.high ? Math.max(this.high, capacity) : this.high; }
  compute() {
    const got = stacked(this.model, this.grouped, this.from, this.to, Math.max(200, this.box.clientWidth - 80));
    this.data = got.data; this.high = got.high; this.all = got.all; this.bands = got.bands;
    for (const o of this.outlined()) this.high = Math.max(this.high, o.highest(this.from, this.to));
    this.note.hidden = !got.bands.length;
  }
  redraw() { this.compute(); this.plot.setData(this.data); this.on.moved(); }
  resize() { if (this.plot && this.plot.width !== this.size().width) { this.compute(); this.plot.setSize(this.size()); this.plot.setData(this.data); } }
  // view shows the time from one moment to another, a nanosecond at the least.
  view(from, to) {
    if (!(to > from)) return;
    const width = Math.min(Math.max(to - from, 100), this.end);
    this.from = Math.min(Math.max(0, from), this.end - width);
    this.to = this.from + width;
    this.redraw();
  }
  zoom(by, about) {
    if (about === undefined) about = this.cursor >= 0 && this.inView(this.cursor) ? this.model.changes.time[this.cursor] : (this.from + this.to) / 2;
    this.view(about - (about - this.from) * by, about + (this.to - about) * by);
  }
  move(by) { const d = (this.to - this.from) * by; this.view(Math.min(Math.max(0, this.from + d), this.end - (this.to - this.from)), Math.max(this.to - this.from, Math.min(this.end, this.to + d))); }
  // fingers has the time under them stay there.
  fingers(scale, from, to) {
    if (!this.plot) return;
    const r = this.plot.over.getBoundingClientRect(), width = Math.min((this.to - this.from) / scale, this.end), t = this.plot.posToVal(from.x - r.left, "x") * 1e9;
    const left = t - (to.x - r.left) / r.width * width;
    this.on.hover();
    this.plot.setCursor({ left: -10, top: -10 }, false);
    this.view(left, left + width);
  }
  inView(i) { const t = this.model.changes.time[i]; return t >= this.from && t <= this.to; }
  instantAt(t) { return Math.max(0, last(this.model.changes.time, t)); }
  // point puts the keyboard's cursor on an instant, and brings it into view.
  point(i) {
    this.cursor = Math.min(Math.max(i, 0), this.model.changes.n - 1);
    const t = this.model.changes.time[this.cursor], width = this.to - this.from;
    if (!this.inView(this.cursor)) this.view(t - width / 2, t + width / 2);
    else this.plot.redraw(false);
    this.on.pointed(this.cursor);
  }
  // mark draws the times that are chosen: one, or A and B.
  mark(...times) { this.chosen = times; if (this.plot) this.plot.redraw(false); }
  hover(u) {
    const { left, top } = u.cursor;
    if (left < 0 || !this.grouped) return;
    const t = u.posToVal(left, "x") * 1e9, i = last(this.model.changes.time, t), y = u.posToVal(top, "y"), held = this.model.at(i);
    const sums = this.sums(held);
    let group = -1, sum = 0;
    for (let g = 0; g < sums.length; g++) if (y >= sum && y < (sum += sums[g])) { group = g; break; }
    this.on.hover(t, i, group, sums, held, u.over.getBoundingClientRect(), left, top);
  }
  sums(held) {
    const out = new Float64Array(this.grouped.groups.length);
    for (let row = 0; row < held.length; row++) if (this.grouped.of[row] >= 0) out[this.grouped.of[row]] += held[row];
    return out;
  }
  // bandAt returns the lowest and the highest of the pixel at a time, if they differ.
  bandAt(t) {
    const band = this.bands.find((b) => b[0] <= t && t < b[1]);
    return band && band.slice(2);
  }
  // paleBands has what was there only for some of a pixel's time look paler.
  paleBands(u) {
    const { ctx } = u;
    ctx.save();
    ctx.globalAlpha = 0.6;
    ctx.fillStyle = theme("back");
    for (const [from, to, low, high] of this.bands) {
      const x = u.valToPos(from / 1e9, "x", true), top = u.valToPos(high, "y", true);
      ctx.fillRect(x, top + 1, u.valToPos(to / 1e9, "x", true) - x, Math.max(u.valToPos(low, "y", true) - top - 1, 0));
    }
    ctx.restore();
  }
  drawOutlines(u) {
    const { ctx } = u, { left, top, width, height } = u.bbox, ratio = devicePixelRatio || 1;
    ctx.save();
    ctx.beginPath(); ctx.rect(left, top, width, height); ctx.clip();
    this.outlined().forEach((o, n) => {
      for (const [colour, wide] of [[theme("back"), 4], [theme("fore"), 2]]) { // seen on every colour
        ctx.strokeStyle = colour; ctx.lineWidth = wide * ratio;
        ctx.setLineDash(outlineDash(n).map((v) => v * ratio));
        ctx.beginPath();
        let y = u.valToPos(0, "y", true);
        for (let i = Math.max(0, last(o.times, this.from)); i < o.times.length && (!i || o.times[i - 1] <= this.to); i++) {
          const x = u.valToPos(o.times[i] / 1e9, "x", true);
          ctx.lineTo(x, y);
          y = u.valToPos(o.bytes[i], "y", true);
          ctx.lineTo(x, y);
        }
        ctx.lineTo(Math.min(left + width, u.valToPos(o.end / 1e9, "x", true)), y);
        ctx.stroke();
      }
    });
    ctx.restore();
  }
  // drawCapacity draws how much the GPU has.
  drawCapacity(u) {
    const { capacity } = this.model.meta.places[this.place], { ctx } = u, { left, top, width } = u.bbox, ratio = devicePixelRatio || 1, y = u.valToPos(capacity, "y", true);
    if (!(y >= top)) return;
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = theme("mark");
    ctx.lineWidth = 2 * ratio;
    ctx.setLineDash([8 * ratio, 4 * ratio]);
    ctx.beginPath(); ctx.moveTo(left, y); ctx.lineTo(left + width, y); ctx.stroke();
    ctx.font = `${11 * ratio}px system-ui, 'DejaVu Sans', sans-serif`;
    ctx.textAlign = "right"; ctx.textBaseline = "bottom";
    ctx.fillText("the GPU has " + bytes(capacity), left + width - 4 * ratio, y - 3 * ratio);
    ctx.restore();
  }
  drawMarks(u) {
    const ctx = u.ctx, { left, top, width, height } = u.bbox, ratio = devicePixelRatio || 1;
    this.paleBands(u);
    this.drawOutlines(u);
    this.drawCapacity(u);
    ctx.save();
    ctx.beginPath(); ctx.rect(left, 0, width, top + height); ctx.clip();
    ctx.font = `${11 * ratio}px system-ui, 'DejaVu Sans', sans-serif`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const taken = [[], [], []]; // of rows of labels: two, and that of steps
    const label = (x, text, rows) => {
      const w = ctx.measureText(text).width + 6 * ratio, at = Math.min(Math.max(x - w / 2, left), left + width - w), row = rows.find((row) => !taken[row].some(([a, b]) => at < b && at + w > a));
      if (row === undefined) return;
      taken[row].push([at, at + w]);
      ctx.fillText(text, at + 3 * ratio, top - (10 + 13 * row) * ratio);
    };
    // put draws a line at a time, with a text if there is room for it.
    const put = (t, text, { colour, dash, wide, rows = [0, 1] }) => {
      const x = u.valToPos(t / 1e9, "x", true);
      if (x < left || x > left + width) return;
      ctx.strokeStyle = ctx.fillStyle = theme(colour);
      ctx.lineWidth = (wide || 1) * ratio;
      ctx.setLineDash(dash.map((v) => v * ratio));
      ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
      if (text) label(x, text, rows);
    };
    const of = (kind) => this.marks.filter((m) => m.kind === kind), t = this.model.changes.time, [a, b] = this.chosen, atPeak = b === undefined && this.model.changes.n && this.instantAt(a) === this.peak.at;
    for (const m of of("oom")) put(m.t, m.short, markKinds.oom);
    for (const [n, time] of this.chosen.entries()) put(time, n ? "B" : b !== undefined ? "A" : atPeak ? "peak" : "chosen", { colour: n ? "second" : "chosen", dash: [], wide: 2 });
    if (this.cursor >= 0) put(t[this.cursor], "", { colour: "fore", dash: [2, 2] });
    if (!atPeak) for (const m of of("peak")) put(m.t, m.short, markKinds.peak);
    for (const m of of("growth")) put(m.t, m.short, markKinds.growth);
    // Of steps each, or each 2nd, 10th, 20th, ..., so that they stay apart.
    let steps = of("step").filter((m) => m.t >= this.from && m.t <= this.to);
    for (let every = 1, by = 2; steps.length > width / ratio / 12; by = 7 - by) { every *= by; steps = steps.filter((m) => m.step % every === 0); }
    for (const m of steps) put(m.t, m.short, markKinds.step);
    ctx.restore();
  }
}

// placeTip puts what is told of a point of the plot in box beside that point, or where
// there is no room beside it below the plot or above.
function placeTip(e, box, left, top) {
  const w = e.offsetWidth, h = e.offsetHeight, x = box.left + left, axis = 40;
  if (innerWidth < 640) {
    const below = box.bottom + axis;
    e.style.left = Math.max(4, (innerWidth - w) / 2) + "px";
    e.style.top = Math.max(4, below + h + 4 < innerHeight ? below : box.top - h > 4 ? box.top - h - 4 : innerHeight - h - 4) + "px";
    return;
  }
  e.style.left = Math.max(4, x + w + 24 > innerWidth ? x - w - 14 : x + 14) + "px";
  e.style.top = Math.max(4, Math.min(box.top + top - 20, box.bottom - h, innerHeight - h - 8)) + "px";
}

// tipAt tells something beside the mouse.
function tipAt(event, ...lines) {
  const e = $("tip");
  e.hidden = false;
  e.replaceChildren(...lines.map((text) => make("div", text)));
  placeTip(e, { left: event.clientX, top: event.clientY, bottom: innerHeight }, 0, 0);
}

// How marks are drawn, and what the legend says of those whose label does not say it.
const markKinds = {
  oom: { colour: "mark", dash: [], wide: 2, says: "a request that was refused" }, peak: { colour: "fore", dash: [4, 3] },
  growth: { colour: "second", dash: [1, 3], says: "grew to that much for the first time" }, step: { colour: "quiet", dash: [1, 4], rows: [2], says: "a training step began, and its number" },
};

// marksOf returns the marks of a place, in order: those of the recording, its peak, and
// where the total grew to more than it ever was and began with: by a tenth of the peak at
// least, a while after it did so last and a while before the peak.
function marksOf(model, place, grouped, peak) {
  const p = model.meta.places[place], out = [], { of } = grouped;
  for (const m of model.meta.marks || []) {
    if (!p.gpu || m.gpu && "GPU " + m.gpu !== p.name && m.gpu !== "unknown") continue;
    out.push({ ...m, short: m.kind === "step" ? String(m.step) : m.text.split(": ")[0] });
  }
  if (peak.any) out.push({ t: model.changes.time[peak.at], kind: "peak", text: "it is the peak", short: "peak" });
  const { time, to, row, bytes: more } = model.changes, pause = (time[time.length - 1] - time[0]) / 40;
  let total = 0, high = 0, grown = 0, since = -Infinity;
  for (let i = 0, d = 0; i < peak.at; i++) {
    for (const end = to[i]; d < end; d++) if (of[row[d]] >= 0) total += more[d];
    if (!i) high = grown = total;
    if (total <= high) continue;
    high = total;
    if (high - grown >= peak.peak / 10 && time[i] >= since + pause && time[i] <= time[peak.at] - pause) {
      out.push({ t: time[i], kind: "growth", text: "it grew to " + bytes(high), short: bytes(high) });
      grown = high; since = time[i];
    }
  }
  return out.sort((a, b) => a.t - b.t);
}
