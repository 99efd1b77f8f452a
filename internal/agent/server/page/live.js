
const most = 20000; // notes

// A Past is what the agent noted over time, as far as it was fetched.
class Past {
  constructor() { this.series = []; this.points = []; }
  // take takes an answer of /api/v1/history.
  take(d) {
    const same = this.series.every((s, i) => d.series[i] && d.series[i].gpu === s.gpu && d.series[i].owner === s.owner);
    this.series = d.series;
    if (!same) { this.points = []; return; } // of another agent: all is fetched next
    if (this.points.length > most) this.points = [];
    for (const p of d.points) this.points.push(p);
  }
  // after is the time of the last note, in milliseconds; the history begins anew where
  // there are too many.
  after() { return this.points.length && this.points.length <= most ? this.points[this.points.length - 1].ms : undefined; }
  // model returns it as charts want it, with a mark of each report.
  model(reports) {
    const strings = [], texts = new Map(), text = (s) => { if (!texts.has(s)) { texts.set(s, strings.length); strings.push(s); } return texts.get(s); };
    text("");
    const labels = [...new Set(this.series.map((s) => s.gpu))].sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
    const none = this.series.map(() => 0), begin = this.points.length ? this.points[0].ms : 0, end = this.points.length ? this.points[this.points.length - 1].ms : 0;
    const rows = { place: this.series.map((s) => labels.indexOf(s.gpu)), owner: this.series.map((s) => text(s.owner)), cause: none, process: none, category: none, module: none, title: none, node: none, grew: none, api: none };
    const time = [], to = [], row = [], by = [], held = new Float64Array(this.series.length);
    for (const p of this.points) {
      const from = row.length;
      for (let i = 0; i < held.length; i++) {
        const v = p.bytes && p.bytes[i] || 0;
        if (v !== held[i]) { row.push(i); by.push(v - held[i]); held[i] = v; }
      }
      if (row.length > from || !time.length) { time.push((p.ms - begin) * 1e6); to.push(row.length); }
    }
    const changes = { n: time.length, time: Float64Array.from(time), to: Uint32Array.from(to), row: Uint32Array.from(row), bytes: Float64Array.from(by) };
    const marks = reports.map((r) => ({ t: (Date.parse(r.time) - begin) * 1e6, kind: "oom", gpu: r.gpu, text: `${r.process} (${r.pid}) asked for ${bytes(r.requested_bytes)}` })).filter((m) => m.t >= 0);
    const model = new Model({ rows, strings, marks, places: labels.map((l) => ({ name: "GPU " + l, gpu: true })), end: (end - begin) * 1e6 }, changes, { n: 0 });
    model.begin = begin;
    return model;
  }
}

// clock returns a moment of a model as the wall clock here has it.
const clock = (model) => (ns, step) => {
  const at = new Date(model().begin + ns / 1e6), two = (n) => String(n).padStart(2, "0");
  const hour = two(at.getHours()) + ":" + two(at.getMinutes());
  if (step >= 86400e9) return `${at.getMonth() + 1}-${two(at.getDate())}`;
  return step >= 60e9 ? hour : hour + ":" + two(at.getSeconds());
};

// stacksOf returns an answer of /api/v1/flame as flame graphs want it.
const stacksOf = (d) => ({
  meta: { nodes: d.nodes, rows: { node: d.rows.node || [] } },
  frame: (i) => ({ short: d.strings[d.frames[i][0]], name: d.strings[d.frames[i][1]], where: d.strings[d.frames[i][2]] }),
});
