
const renewEvery = 2000; // milliseconds

async function fetched(path) {
  // The address of the page may have a password in it, which fetch refuses.
  const answer = await fetch(new URL(path, location.origin), { cache: "no-store", redirect: "error" });
  if (answer.status === 401) { location.reload(); throw new Error("the token changed"); }
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
  for (const id of ["gpu", "pid", "by"]) offer($(id), $(id + "s"));
  const again = box.querySelectorAll(focusable)[focused];
  if (again) again.focus({ preventScroll: true });
}

// offer puts what can be chosen now into a chooser. What is chosen stays.
function offer(chooser, now) {
  const value = chooser.value, text = (of) => [...of.options].map((o) => o.value + " " + o.text).join("\n");
  if (![...now.options].some((o) => o.value === value)) now.append(new Option(chooser.selectedOptions[0].text, value));
  if (text(chooser) !== text(now)) chooser.replaceChildren(...now.children);
  now.remove();
  chooser.value = value;
}

const choosers = ["gpu", "pid", "by", "minutes"];

// chosen is what the page's address says of some choosers, as parameters.
function chosen(...ids) {
  const address = new URLSearchParams(location.search);
  return new URLSearchParams(ids.filter((id) => address.get(id)).map((id) => [id, address.get(id)]));
}

// choose puts what the reader chose into the page's address, and choice puts that into the
// choosers.
function choose() {
  const address = new URLSearchParams(location.search);
  for (const id of choosers) if ($(id).value && !$(id).options[0].selected) address.set(id, $(id).value); else address.delete(id);
  history.replaceState(null, "", location.pathname + (address.size ? "?" + address : ""));
}
function choice() {
  for (const [id, value] of chosen(...choosers)) {
    if (![...$(id).options].some((o) => o.value === value)) $(id).append(new Option(value, value));
    $(id).value = value;
  }
}

function page() {
  const past = new Past();
  let model = null, grouped = null, reports = [], owners = false;
  const at = clock(() => model);
  let chart = null;

  const flame = { drawn: null };
  async function draw() {
    const d = await (await fetched("/api/v1/flame?" + chosen("gpu", "pid"))).json(), stacks = stacksOf(d);
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
  // lookBack has the page tell what was held at an instant.
  function lookBack(i) {
    if (i < 0) return;
    chart.point(i);
    const address = new URLSearchParams(location.search);
    address.set("at", new Date(Math.round(model.begin + model.changes.time[i] / 1e6)).toISOString());
    history.replaceState(null, "", location.pathname + "?" + address);
    turn().catch(() => {}); // the next turn says why
  }
  // told says what the chart is of.
  function told() {
    const { gpu, pid, by } = asked();
    $("grouping").textContent = "By " + by;
    $("owners").disabled = Boolean(pid);
    $("grouping").setAttribute("aria-pressed", String(!owners || Boolean(pid)));
    $("owners").setAttribute("aria-pressed", String(owners && !pid));
    $("of").textContent = (pid ? $("pid").selectedOptions[0].text + " on " : "") + (gpu ? "GPU " + gpu : "all GPUs together") + (pid ? ". The history does not divide a process by owner." : "");
  }
  const asked = () => ({ gpu: $("gpu").value, pid: $("pid").value, by: $("by").value || "process" });
  // colours are the ones that owners have in the bars.
  function colours() {
    const of = new Map();
    for (const s of document.querySelectorAll("#now .parts .swatch")) of.set(s.parentElement.firstChild.nextSibling.textContent.trim(), getComputedStyle(s).getPropertyValue("--c").trim());
    return of;
  }
  function chartOf() {
    const { gpu, pid, by } = asked();
    model = past.model(reports, { gpu, pid, by: owners && !pid ? "owner" : by });
    told();
    if (!past.points.length) return;
    grouped = groupsOf(model, 0, "group");
    const of = colours();
    const taken = new Set(grouped.groups.map((g) => of.get(g.name)));
    for (const g of grouped.groups) {
      if (g.other) continue;
      g.colour = g.name === others ? otherColour() : of.get(g.name) || hues.find((c) => !taken.has(c)) || g.colour;
      taken.add(g.colour);
    }
    if (!chart) {
      chart = new Chart(model, { hover: (...x) => requestAnimationFrame(() => tip(...x)), choose: lookBack, pointed: tell, moved: () => {}, time: at });
      chart.from = Math.max(0, model.meta.end - $("minutes").value * 60e9);
      chart.show(0, grouped);
    } else chart.follow(model, 0, grouped);
    $("legend").replaceChildren(...[...grouped.groups].reverse().map((g) => {
      const li = make("li");
      li.append(...entryOf(g));
      return li;
    }));
  }

  async function turn() {
    const after = past.after(), asked = location.search;
    const [now, history, oom] = await Promise.all([fetched("/now" + asked), fetched("/api/v1/history" + (after === undefined ? "" : "?after=" + after)), fetched("/api/v1/oom")]);
    const text = await now.text();
    if (asked === location.search) renew(text);
    past.take(await history.json());
    reports = (await oom.json()).reports || [];
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
  for (const [id, so] of [["grouping", false], ["owners", true]]) $(id).addEventListener("click", () => { owners = so; rechart(); });
  // rechart draws what was chosen anew: the moments of another part are others.
  function rechart() {
    $("here").textContent = "";
    if (chart) chart.cursor = -1;
    chartOf();
  }
  const step = (by) => chart.point(chart.cursor < 0 ? model.changes.n - 1 : chart.cursor + by);
  const keys = { ArrowRight: () => step(1), ArrowLeft: () => step(-1), "+": act.in, "=": act.in, "-": act.out, 0: act.all, "[": act.left, "]": act.right, Home: () => chart.point(0), End: () => chart.point(model.changes.n - 1), Enter: () => lookBack(chart.cursor) };
  $("chart").addEventListener("keydown", (e) => { if (chart && keys[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); keys[e.key](); } });
  addEventListener("scroll", () => { $("tip").hidden = true; }, { passive: true });
  const drawn = () => draw().catch((e) => { $("frame").textContent = e.message; });
  choice();
  for (const id of choosers) {
    $(id).addEventListener("change", () => {
      choose();
      if (id === "minutes") view($(id).value * 60e9); else rechart();
      if (id === "gpu" || id === "pid") drawn();
      turn().catch(() => {}); // the next turn says why
    });
  }
  $("again").addEventListener("click", drawn);
  dark.addEventListener("change", () => { if (model) chartOf(); });
  Promise.allSettled([drawn(), go()]).then(() => { document.documentElement.dataset.ready = "yes"; });
}

page();
