
// A page that an agent serves fetches what it shows, again and again.
const renewEvery = 2000, shownStacks = 300, mostPoints = 20000;
const isLive = document.body.classList.contains("live");

async function fetched(path) {
  // The address of the page may have a password in it, which fetch refuses.
  const answer = await fetch(new URL(path, location.origin), { cache: "no-store", redirect: "error" });
  if (answer.status === 401) { location.reload(); throw new Error("the password changed"); }
  if (!answer.ok) throw new Error((await answer.text()).trim() || String(answer.status));
  return answer.json();
}

const tidy = (s) => (s || "").replace(/\p{C}/gu, "\ufffd").slice(0, 300);
const who = ["user", "command", "pod", "container", "job", "service"];
const whoOf = (x, by) => tidy({ pod: x.pod ? `${x.namespace || ""}/${x.pod}` : x.pod_uid, container: x.container || (x.container_id || "").slice(0, 12) }[by] || x[by]);
const processName = (x) => x.pid ? `${tidy(x.process) || "?"} (${x.pid})` : "other processes";

// A Live is what the agent told. Of the past it has what processes, and owners, held on each
// GPU; of now it has stacks.
class Live {
  constructor() { this.series = []; this.processes = new Map(); this.points = []; }
  async fetch() {
    const after = this.points.length && this.points.length <= mostPoints ? "?after=" + this.points[this.points.length - 1].ms : "";
    const [history, top, events] = await Promise.all([fetched("/api/v1/history" + after), fetched("/api/v1/top?stacks=" + shownStacks), fetched("/api/v1/events?minutes=2880")]);
    if (!this.series.every((s, i) => history.series[i] && history.series[i].gpu === s.gpu && history.series[i].owner === s.owner)) { // of another agent
      Object.assign(this, new Live());
      return this.fetch();
    }
    if (!after) { this.points = []; this.processes.clear(); }
    this.series = history.series;
    for (const x of history.processes) this.processes.set(x.id, x);
    let held = after ? this.points[this.points.length - 1].held : [];
    for (const p of history.points) this.points.push({ ms: p.ms, bytes: p.bytes || [], held: held = p.held || held });
    const { now } = top;
    Object.assign(now, { meta: top.meta, notes: top.notes, loss: top.loss, accounts: top.accounts, processes: top.processes.map((x, i) => ({ ...x, ...now.processes[i] })) });
    now.stacks = now.stacks.map((x) => {
      const { stack, labels, values } = top.samples[x.sample];
      return { ...labels, ...x, inuse_bytes: values.inuse_bytes, frames: stack.flatMap((i) => top.locations[i].lines) };
    });
    // The history has the names as it shows them.
    const names = new Map(held.map(([id]) => this.processes.get(id)).filter(Boolean).map((x) => [x.pid, x.process]));
    for (const x of [...now.processes, ...now.accounts, ...now.stacks]) x.process = names.get(x.pid) ?? x.process ?? x.name;
    this.recording = history.recording && { path: history.recording, ms: history.recording_since_ms };
    this.now = now; this.events = events;
    this.ms = Math.max(Date.parse(now.meta.start) + now.meta.duration_ns / 1e6, this.points.length ? this.points[this.points.length - 1].ms + 1 : 0);
  }
  // model returns it as charts and tables want it. The past is by owner or by process.
  model(byOwner) {
    const m = new Rows(), { points, now } = this, begin = points.length ? points[0].ms : this.ms;
    for (const g of now.gpus) m.meta.places[m.place(g.gpu)].capacity = g.total_bytes;
    const time = [], to = [], row = [], more = [];
    let held = new Map(), before = null;
    const step = (ms, next) => {
      const from = row.length;
      for (const [r, v] of next) if (v !== (held.get(r) || 0)) { row.push(r); more.push(v - (held.get(r) || 0)); }
      for (const [r, v] of held) if (!next.has(r)) { row.push(r); more.push(-v); }
      held = next;
      if (row.length > from || !time.length) { time.push((ms - begin) * 1e6); to.push(row.length); }
    };
    const past = { title: "[stacks of then are in a recording]" };
    for (const p of points) {
      if (!byOwner && p.held === before) continue;
      before = p.held;
      const next = new Map();
      if (byOwner) p.bytes.forEach((v, i) => { if (v) next.set(m.row("owner " + i, { ...this.series[i], ...past }), v); });
      else for (const [id, v] of p.held) { const x = this.processes.get(id); if (v && x) next.set(m.row("process " + id, { ...x, ...past, process: processName(x), who: x }), v); }
      step(p.ms, next);
    }
    step(this.ms, this.stacks(m));
    m.meta.end = time[time.length - 1];
    m.meta.marks = this.events.failures.map((x) => ({ t: (Date.parse(x.time) - begin) * 1e6, kind: "oom", gpu: x.gpu, text: `${processName(x)} asked for ${bytes(x.requested_bytes)}` })).filter((x) => x.t >= 0);
    const model = new Model(m.meta, { n: time.length, time: Float64Array.from(time), to: Uint32Array.from(to), row: Uint32Array.from(row), bytes: Float64Array.from(more) }, { n: 0, until: 0, moments: [], begin: [] });
    model.begin = begin;
    return model;
  }
  // stacks returns what is held now: by stack, and as one row for each process and GPU what the
  // listed stacks do not hold.
  stacks(m) {
    const out = new Map(), rest = new Map(), of = new Map(this.now.processes.map((x) => [x.pid, x]));
    for (const a of this.now.accounts) rest.set(`${a.pid} ${a.gpu}`, { ...a, bytes: a.total_bytes });
    this.now.stacks.forEach((x, i) => {
      const account = rest.get(`${x.pid} ${x.gpu}`);
      if (!account || x.inuse_bytes <= 0 || account.bytes < x.inuse_bytes || !onGPU(x.kind)) return;
      account.bytes -= x.inuse_bytes;
      out.set(m.row("stack " + i, { ...x, process: processName(x), cause: x.kind, title: x.text, who: of.get(x.pid) }), x.inuse_bytes);
    });
    for (const [key, x] of rest) if (x.bytes > 0) out.set(m.row("rest " + key, { ...x, process: processName(x), title: "[other stacks]", who: of.get(x.pid) }), x.bytes);
    return out;
  }
}

const onGPU = (kind) => !["host", "managed", "imported", "multicast", "graph", "system"].includes(kind);

// Rows makes the rows of a model.
class Rows {
  constructor() {
    this.columns = ["process", "owner", "cause", "category", "module", "operator", "api", "title", "holder"];
    this.meta = { strings: [""], frames: [[0, 0, 0]], nodes: [[0, 0]], places: [], rows: { place: [], node: [], grew: [] }, exact: true, map_exact: true };
    for (const name of [...this.columns, ...who]) this.meta.rows[name] = [];
    this.index = new Map([["text ", 0]]);
  }
  // number returns the index of what key names, in a list to which add adds it.
  number(key, list, value) {
    if (!this.index.has(key)) { this.index.set(key, list.length); list.push(value()); }
    return this.index.get(key);
  }
  text(s) { return this.number("text " + s, this.meta.strings, () => s); }
  place(gpu) { return this.number("place " + gpu, this.meta.places, () => ({ name: "GPU " + tidy(gpu), gpu: true })); }
  row(key, x) {
    return this.number(key, this.meta.rows.place, () => {
      const { rows } = this.meta, place = this.place(x.gpu); // before place has the row
      for (const name of this.columns) rows[name].push(this.text(tidy(x[name])));
      for (const name of who) rows[name].push(this.text(x.who ? whoOf(x.who, name) || `no ${name} known` : ""));
      rows.grew.push(x.grown_bytes || 0);
      rows.node.push(this.node(x.frames ? [...x.frames].reverse() : [{ function: `[${x.process || x.owner || "not known"}]` }, { function: x.title }]));
      return place;
    });
  }
  node(frames) {
    let node = 0;
    for (const f of frames) {
      const name = this.text(tidy(f.function)), where = this.text(tidy(f.file) + (f.line ? ":" + f.line : ""));
      const frame = this.number(`frame ${name} ${where}`, this.meta.frames, () => [name, name, where]), parent = node;
      node = this.number(`node ${parent} ${frame}`, this.meta.nodes, () => [parent, frame]);
    }
    return node;
  }
}

// shellWord returns a word as a shell reads it.
const shellWord = (s) => /^[A-Za-z0-9_@%+=:,./-]+$/.test(s) ? s : "'" + s.replaceAll("'", "'\\''") + "'";

// clockOf returns a moment of a live page in UTC.
const clockOf = (model) => (ns, step) => {
  const at = new Date(model().begin + ns / 1e6), two = (n) => String(n).padStart(2, "0");
  const hour = two(at.getUTCHours()) + ":" + two(at.getUTCMinutes());
  if (step >= 86400e9) return `${at.getUTCMonth() + 1}-${two(at.getUTCDate())}`;
  return step >= 60e9 ? hour : hour + ":" + two(at.getUTCSeconds());
};

// peaksOfProcesses returns the most that each process held at a moment of the past, and when it
// held memory last, by its name.
function peaksOfProcesses(live) {
  const out = new Map();
  let before = null;
  for (const p of live.points) {
    const sums = new Map();
    if (p.held === before) { for (const x of out.values()) if (x.on) x.last = p.ms; continue; }
    before = p.held;
    for (const [id, v] of p.held) { const x = live.processes.get(id); if (x && x.pid) sums.set(processName(x), [(sums.get(processName(x)) || [0])[0] + v, x]); }
    for (const x of out.values()) x.on = false;
    for (const [name, [v, x]] of sums) {
      const peak = out.get(name) || { peak: 0, gpus: new Set() };
      if (v > peak.peak) peak.peak = v;
      peak.gpus.add(x.gpu);
      out.set(name, Object.assign(peak, { x, on: true, last: p.ms }));
    }
  }
  return out;
}

// fillNow lists what each GPU and each process holds now, and what happened.
function fillNow(live, wanted) {
  const { now, events } = live, day = (t) => new Date(t).toISOString().replace("T", " ").slice(0, 19) + " UTC", until = (t) => day(t).slice(day(t).slice(0, 10) === day(live.ms).slice(0, 10) ? 11 : 0);
  $("about").textContent = [tidy(now.meta.target), day(live.ms), now.meta.driver && "driver " + now.meta.driver, now.meta.version && "gpumemtrace " + now.meta.version,
    now.own_cost && `the trace uses ${(100 * now.own_cpu_share).toFixed(1)}% of a processor`, now.ended].filter(Boolean).join(" · ");
  $("gpus").replaceChildren(...now.gpus.map((g) => {
    const used = g.total_bytes ? `${bytes(g.used_bytes)} of ${bytes(g.total_bytes)} used (${(100 * g.used_bytes / g.total_bytes).toFixed(1)}%); ` : "", li = make("li");
    li.append(make("b", "GPU " + tidy(g.gpu)), ` ${tidy(g.name)}: ${used}traced processes hold ${g.known ? "" : "at least "}${bytes(g.held_bytes)}`, g.other_processes ? `; ${count(g.other_processes, "process")} not traced` : "");
    return li;
  }));
  const past = peaksOfProcesses(live), here = new Set(now.processes.map(processName)), some = (n) => n ? bytes(n) : "";
  const rows = now.processes.map((x) => ({ x, held: x.held_bytes, peak: Math.max(x.held_bytes, (past.get(processName(x)) || { peak: 0 }).peak), gpus: x.gpus }));
  for (const [name, p] of past) if (!here.has(name)) rows.push({ x: p.x, held: 0, peak: p.peak, gpus: [...p.gpus], until: p.last });
  rows.sort((a, b) => b.held - a.held || b.peak - a.peak);
  const columns = [
    ["HELD", "n", (r) => (r.until || r.x.known ? "" : "≥ ") + bytes(r.held)], ["PEAK", "n", (r) => bytes(r.peak)], ["GPU", "l", (r) => r.gpus.map(tidy).join(", ")], ["PID", "n", (r) => String(r.x.pid)],
    ["NAME", "name", (r) => (tidy(r.x.process) || "?") + (r.until ? " until " + until(r.until) : "")], ["USER", "name", (r) => tidy(r.x.user)],
    ["WORKLOAD", "name wide", (r) => whoOf(r.x, "pod") || (r.x.job ? "job " + tidy(r.x.job) : "") || tidy(r.x.service) || whoOf(r.x, "container")],
    ["IN USE", "n wide", (r) => r.until ? "" : some(r.x.inuse_bytes)], ["GROWN", "n wide", (r) => r.x.grown_bytes ? signed(r.x.grown_bytes) : ""],
    ["ALLOCATES", "n wide", (r) => r.x.allocated_bytes_per_second >= 1 ? bytes(r.x.allocated_bytes_per_second) + "/s" : ""], ["FAILED", "n wide", (r) => r.x.failed ? String(r.x.failed) : ""],
    ["COMMAND", "name wide", (r) => tidy(r.x.command)],
  ].filter(([name, , of]) => name === "HELD" || rows.some((r) => of(r)));
  const shown = rows.filter((r) => !wanted || processName(r.x) === wanted), most = 200, table = $("processes"), head = make("tr");
  for (const [name, c] of columns) head.append(make("th", name, c));
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...shown.slice(0, most).map((r) => {
    const tr = make("tr", undefined, r.until ? "gone" : "");
    for (const [, c, of] of columns) { const td = make("td", of(r), c); if (c.startsWith("name")) td.title = of(r); tr.append(td); }
    return tr;
  }));
  $("moreprocesses").textContent = shown.length > most ? `And ${shown.length - most} more.` : shown.length ? "" : "None is traced.";
  const line = (text, when, frames, report, on) => {
    const li = make("li"), to = make(report ? "a" : on ? "b" : "span", text);
    if (report) to.href = "/oom/" + report;
    li.append(to, " ", make("span", when, "quiet"));
    if (frames && frames.length) { const d = make("details"), ol = make("ol"); ol.append(...frames.map((f) => make("li", tidy(f)))); d.append(make("summary", "stack"), ol); li.append(d); }
    return li;
  };
  if ($("happened").querySelector("details[open]")) return;
  $("happened").replaceChildren(
    ...events.alerts.map((a) => line(tidy(a.text.replace(/^resolved: /, "")), a.resolved ? `${day(a.since)} to ${day(a.time)}` : "since " + day(a.since), a.stack, 0, !a.resolved)),
    ...events.failures.map((x) => line(`${processName(x)} asked for ${bytes(x.requested_bytes)}` + (x.gpu && " on GPU " + tidy(x.gpu)), day(x.time) + (x.recovered ? ", recovered" : ", not recovered"), x.stack, x.number)),
    ...events.leaks.map((x) => line(`${processName(x)}: ${signed(x.growth_bytes)}` + (x.line ? " at " + tidy(x.line) : ""), `found ${day(x.first)}` + (x.now ? ", grows" : `, until ${day(x.last)}`), x.stack, 0, x.now)));
  $("happened").hidden = !$("happened").children.length;
}
