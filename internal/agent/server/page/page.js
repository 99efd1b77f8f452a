
const renewEvery = 2000; // milliseconds

async function fetched(path) {
  const answer = await fetch(path, { cache: "no-store", redirect: "error" });
  if (answer.status === 401) { location.reload(); throw new Error("the login ended"); }
  if (!answer.ok) throw new Error((await answer.text()).trim() || String(answer.status));
  return answer;
}

const focusable = "a, summary, [tabindex]";

// renew puts what is so now where what was so is, but for what the reader opened.
function renew(text) {
  const box = $("now"), fresh = new DOMParser().parseFromString(text, "text/html").body;
  const open = new Set([...box.querySelectorAll("details[open]")].map((d) => d.dataset.key));
  for (const d of fresh.querySelectorAll("details")) d.open = open.has(d.dataset.key);
  const focused = box.contains(document.activeElement) ? [...box.querySelectorAll(focusable)].indexOf(document.activeElement) : -1;
  const at = [...box.querySelectorAll(".scroll")].map((e) => [e.scrollLeft, e.scrollTop]);
  box.replaceChildren(...fresh.childNodes);
  box.querySelectorAll(".scroll").forEach((e, i) => { [e.scrollLeft, e.scrollTop] = at[i] || [0, 0]; });
  const again = box.querySelectorAll(focusable)[focused];
  if (again) again.focus({ preventScroll: true });
}

function page() {
  const past = new Past();
  let model = null, place = -1, grouped = null, reports = [];
  const at = clock(() => model);
  let chart = null;

  const flame = { drawn: null };
  async function draw() {
    const asked = new URLSearchParams();
    for (const id of ["gpu", "pid"]) if ($(id).value) asked.set(id, $(id).value);
    const d = await (await fetched("/api/v1/flame?" + asked)).json(), stacks = stacksOf(d);
    if (flame.drawn) flame.drawn.use(stacks); else flame.drawn = new Flame(stacks);
    flame.drawn.show(Float64Array.from(d.rows.bytes || []));
    $("frame").textContent = "";
  }

  function tell(i) {
    const held = model.at(i), total = chart.sums(held).reduce((a, b) => a + b, 0);
    const near = chart.marks.filter((m) => last(model.changes.time, m.t) === i && m.kind === "oom").map((m) => m.text);
    $("here").textContent = `${at(model.changes.time[i], 1e9)}: ${bytes(total)} (${exactly(total)})${near.length ? " – " + near.join(", ") : ""}`;
  }
  function tip(i, group, sums, held, box, left, top) {
    const e = $("tip");
    e.hidden = i === undefined || i < 0;
    if (e.hidden) return;
    const table = make("table"), line = (name, v, colour, on) => {
      const tr = make("tr", undefined, on ? "on" : ""), td = make("td");
      if (colour) { const s = make("span", undefined, "swatch"); s.style.setProperty("--c", colour); td.append(s); }
      td.append(name);
      tr.append(td, make("td", bytes(v)));
      return tr;
    };
    table.append(line(at(model.changes.time[i], 1e9), sums.reduce((a, b) => a + b, 0), "", true));
    for (const g of [...sums.keys()].filter((g) => sums[g] > 0).reverse()) table.append(line(grouped.groups[g].name.slice(0, 70), sums[g], colourOf(grouped.groups[g]), g === group));
    e.replaceChildren(table);
    placeTip(e, box, left, top);
  }
  function tabs() {
    const names = model.meta.places.map((p) => p.name), shown = [...$("places").children].map((t) => t.textContent);
    if (names.join() !== shown.join()) {
      $("places").replaceChildren(...names.map((name, p) => {
        const tab = make("button", name);
        tab.setAttribute("role", "tab");
        tab.addEventListener("click", () => { place = p; chartOf(); });
        return tab;
      }));
    }
    [...$("places").children].forEach((t, p) => { t.setAttribute("aria-selected", String(p === place)); t.tabIndex = p === place ? 0 : -1; });
  }
  // colours are the ones that owners have in the bars.
  function colours() {
    const of = new Map();
    for (const s of document.querySelectorAll("#now .parts .swatch")) of.set(s.parentElement.firstChild.nextSibling.textContent.trim(), getComputedStyle(s).getPropertyValue("--c").trim());
    return of;
  }
  function chartOf() {
    if (!model.changes.n || !model.meta.places.length) return;
    place = Math.min(Math.max(place, 0), model.meta.places.length - 1);
    grouped = groupsOf(model, place, "owner");
    const of = colours();
    const taken = new Set(grouped.groups.map((g) => of.get(g.name)));
    for (const g of grouped.groups) {
      if (g.other) continue;
      g.colour = of.get(g.name) || hues.find((c) => !taken.has(c)) || g.colour;
      taken.add(g.colour);
    }
    tabs();
    if (!chart) {
      chart = new Chart(model, { hover: (...x) => requestAnimationFrame(() => tip(...x)), choose: (i) => chart.point(i), pointed: tell, moved: () => {}, time: at });
      chart.from = Math.max(0, model.meta.end - 900e9);
      chart.show(place, grouped);
    } else chart.follow(model, place, grouped);
    $("legend").replaceChildren(...[...grouped.groups].reverse().map((g) => {
      const li = make("li"), s = make("span", undefined, "swatch");
      s.style.setProperty("--c", colourOf(g));
      li.append(s, g.name + " ");
      if (!g.other) li.append(make("span", "≤ " + bytes(g.most)));
      return li;
    }));
  }

  async function turn() {
    const after = past.after();
    const [now, history, oom] = await Promise.all([fetched("/now"), fetched("/api/v1/history" + (after === undefined ? "" : "?after=" + after)), fetched("/api/v1/oom")]);
    renew(await now.text());
    past.take(await history.json());
    reports = (await oom.json()).reports || [];
    model = past.model(reports);
    chartOf();
  }
  let failed = 0;
  async function go() {
    try {
      if (!document.hidden) await turn();
      failed = 0;
      $("failed").hidden = true;
    } catch (e) {
      failed++;
      $("failed").hidden = false;
      $("failed").textContent = "The agent does not answer: " + e.message + ". What is shown is of before.";
    }
    document.documentElement.dataset.turns = String(Number(document.documentElement.dataset.turns || 0) + 1);
    setTimeout(go, renewEvery * Math.min(1 + failed, 15));
  }

  const view = (ns) => { if (chart) chart.view(Math.max(0, chart.end - ns), chart.end); };
  const act = {
    in: () => chart.zoom(0.5), out: () => chart.zoom(2), left: () => chart.move(-0.25), right: () => chart.move(0.25), all: () => chart.view(0, chart.end),
    quarter: () => view(900e9), hour: () => view(3600e9),
  };
  for (const id of Object.keys(act)) $(id).addEventListener("click", () => { if (chart) act[id](); });
  $("places").addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key], all = [...$("places").children], to = all[all.indexOf(document.activeElement) + by];
    if (by && to) { to.click(); to.focus(); }
  });
  const step = (by) => chart.point(chart.cursor < 0 ? model.changes.n - 1 : chart.cursor + by);
  const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), "+": act.in, "=": act.in, "-": act.out, 0: act.all, "[": act.left, "]": act.right, Home: () => chart.point(0), End: () => chart.point(model.changes.n - 1) };
  $("chart").addEventListener("keydown", (e) => { if (chart && keys[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); keys[e.key](); } });
  addEventListener("scroll", () => { $("tip").hidden = true; }, { passive: true });
  const drawn = () => draw().catch((e) => { $("frame").textContent = e.message; });
  for (const id of ["gpu", "pid"]) $(id).addEventListener("change", drawn);
  $("again").addEventListener("click", drawn);
  dark.addEventListener("change", () => { if (model) chartOf(); });
  Promise.allSettled([drawn(), go()]).then(() => { document.documentElement.dataset.ready = "yes"; });
}

page();
