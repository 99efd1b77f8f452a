
const most = 20000; // notes

// A Past is what the agent noted over time, as far as it was fetched.
class Past {
  constructor() { this.series = []; this.processes = new Map(); this.points = []; }
  // take takes an answer of /api/v1/history.
  take(d) {
    const same = this.series.every((s, i) => d.series[i] && d.series[i].gpu === s.gpu && d.series[i].owner === s.owner);
    this.series = d.series;
    if (!same) { this.points = []; return; } // of another agent: all is fetched next
    if (this.points.length > most) { this.points = []; this.processes.clear(); }
    for (const x of d.processes) this.processes.set(x.id, x);
    let held = [];
    for (const p of d.points) {
      held = p.held || held;
      this.points.push({ ms: p.ms, bytes: p.bytes || [], held });
    }
  }
  // after is the time of the last note, in milliseconds; the history begins anew where
  // there are too many.
  after() { return this.points.length && this.points.length <= most ? this.points[this.points.length - 1].ms : undefined; }
  // model returns what is chosen of it as charts want it, with a mark of each report: by is
  // "owner", or what processes are grouped by.
  model(reports, { gpu, pid, by }) {
    const strings = [], texts = new Map(), text = (s) => { if (!texts.has(s)) { texts.set(s, strings.length); strings.push(s); } return texts.get(s); };
    text("");
    const wanted = (x) => (!gpu || x.gpu === gpu) && (!pid || String(x.pid) === pid), names = [], row = [], more = [], time = [], to = [];
    const rowOf = new Map(); // of a series, or of a process
    const of = (key, name) => { if (!rowOf.has(key)) { rowOf.set(key, names.length); names.push(text(name)); } return rowOf.get(key); };
    const amounts = by === "owner" ? (p) => p.bytes.map((v, i) => [i, v]) : (p) => p.held;
    const known = by === "owner" ? (i) => this.series[i] : (id) => this.processes.get(id);
    const name = by === "owner" ? (x) => x.owner : (x) => groupOf(x, by);
    const begin = this.points.length ? this.points[0].ms : 0, end = this.points.length ? this.points[this.points.length - 1].ms : 0;
    let now = new Map(), before = null;
    for (const p of this.points) {
      const from = row.length;
      if (by === "owner" || p.held !== before) {
        const next = new Map();
        for (const [key, v] of amounts(p)) {
          const x = known(key);
          if (!v || !x || !wanted(x)) continue;
          const r = of(key, name(x)), by = v - (now.get(r) || 0);
          next.set(r, v);
          if (by) { row.push(r); more.push(by); }
        }
        for (const [r, v] of now) if (!next.has(r)) { row.push(r); more.push(-v); }
        now = next;
        before = p.held;
      }
      if (row.length > from || !time.length) { time.push((p.ms - begin) * 1e6); to.push(row.length); }
    }
    const none = names.map(() => 0), title = gpu ? "GPU " + gpu : "All GPUs";
    const rows = { place: none, group: names, owner: none, cause: none, process: none, category: none, module: none, title: none, node: none, grew: none, api: none };
    const changes = { n: time.length, time: Float64Array.from(time), to: Uint32Array.from(to), row: Uint32Array.from(row), bytes: Float64Array.from(more) };
    const marks = reports.filter(wanted).map((r) => ({ t: (Date.parse(r.time) - begin) * 1e6, kind: "oom", gpu: gpu && r.gpu, text: `${r.process} (${r.pid}) asked for ${bytes(r.requested_bytes)}` })).filter((m) => m.t >= 0);
    const model = new Model({ rows, strings, marks, places: [{ name: title, gpu: true }], end: (end - begin) * 1e6 }, changes, { n: 0 });
    model.begin = begin;
    return model;
  }
}

const others = "other processes"; // that the history does not tell apart

// groupOf names the group of a process as the tables do.
function groupOf(x, by) {
  if (!x.pid) return others;
  if (by === "process") return `${x.process || "?"} (${x.pid})`;
  const pod = x.pod && `${x.namespace || ""}/${x.pod}`;
  const value = { pod: pod || x.pod_uid, container: x.container || (x.container_id || "").slice(0, 12) }[by] || x[by];
  return value || `no ${by} known`;
}

// clock returns a moment of a model in UTC, as the rest of the page has it.
const clock = (model) => (ns, step) => {
  const at = new Date(model().begin + ns / 1e6), two = (n) => String(n).padStart(2, "0");
  const hour = two(at.getUTCHours()) + ":" + two(at.getUTCMinutes());
  if (step >= 86400e9) return `${at.getUTCMonth() + 1}-${two(at.getUTCDate())}`;
  return step >= 60e9 ? hour : hour + ":" + two(at.getUTCSeconds());
};

// stacksOf returns an answer of /api/v1/flame as flame graphs want it.
const stacksOf = (d) => ({
  meta: { nodes: d.nodes, rows: { node: d.rows.node || [] } },
  frame: (i) => ({ short: d.strings[d.frames[i][0]], name: d.strings[d.frames[i][1]], where: d.strings[d.frames[i][2]] }),
});
