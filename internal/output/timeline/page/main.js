
async function main() {
  const live = isLive && new Live();
  let model, meta, time, tabs = "";
  const use = (m) => { model = m; meta = m.meta; time = m.changes.time; };
  const modelNow = () => live.model($("group").value === "owner");
  if (live) {
    for (const o of [...$("group").options]) if (!["owner", "process", "stack"].includes(o.value)) o.remove();
    $("group").append(...who.map((name) => make("option", name)));
    $("group").value = "process";
    await live.fetch();
    use(modelNow());
  } else {
    const blocks = await unpacked();
    use(new Model(metaOf(blocks), changesOf(blocks), livesOf(blocks)));
  }
  const when = live ? clockOf(() => model) : duration;
  let place = -1, grouped = null, peak = null, chosen = [-1, -1], times = [0, 0], second = false, only = ""; // times: of the chosen instants or later, until something changes. only: the group that is shown alone

  if (live) {
    $("now").hidden = $("programs").hidden = false;
    $("title").textContent = "GPU memory on " + document.title.split(" – ")[0];
  } else about();
  function about() {
    $("title").textContent = "GPU memory of " + meta.title;
    const begin = new Date(meta.begin_ms);
    $("about").textContent = [
      begin.toISOString().replace("T", " ").slice(0, 19) + " UTC", duration(meta.end, 1e7), !meta.profile && meta.changes.toLocaleString("en-US") + " changes",
      meta.driver && "driver " + meta.driver, meta.version && "gpumemtrace " + meta.version,
    ].filter(Boolean).join(" · ");
    document.body.classList.toggle("profile", !!meta.profile);
    fillPassages(meta, (t) => { const i = chart.instantAt(t); chart.point(i); choose(i, false, Math.max(t, time[i])); });
    const notes = [];
    if (!meta.exact) notes.push(`There were ${meta.changes.toLocaleString("en-US")} changes, more than one file holds: the page knows ${meta.instants.toLocaleString("en-US")} moments to the byte, of each ${meta.bucket.toLocaleString("en-US")} changes those where the total of a GPU, or of other memory, was lowest and highest, and the last. Zooming in shows no more than these. Peaks are exact.`);
    if (!meta.map_exact) notes.push("Where memory lay is known at some moments only: the map is of the last one before.");
    notes.push(...(meta.notes || []), ...(meta.loss || []).map((l) => `${l.value.toLocaleString("en-US")} ${l.help} (${l.name})`));
    fillNotes(notes);
  }
  function fillNotes(notes) {
    if (live && $("notes").open) return;
    $("notes").hidden = !notes.length;
    $("notes").querySelector("summary").textContent = notes.length + (notes.length === 1 ? " note" : " notes") + (meta.profile ? " of the profile" : " on what is not known, or was lost");
    $("notes").querySelector("ul").replaceChildren(...notes.map((n) => make("li", n)));
  }
  const flame = new Flame(model), map = new AddressMap(model), table = new Table(model, () => update()), trees = [];
  const native = () => $("native").checked;
  const chart = new Chart(model, {
    hover: (...x) => requestAnimationFrame(() => tip(...x)),
    choose: (i, other, t) => choose(i, other || second, t),
    pointed: (i) => pointed(i),
    moved: () => { span(); events(); },
    time: live ? when : undefined,
  });

  function span() {
    const from = last(time, chart.from), to = last(time, chart.to);
    $("span").textContent = `${duration(chart.to - chart.from)} in view, ${(to - from).toLocaleString("en-US")} ${meta.exact && !live ? "changes" : "moments"}${chart.all ? ", each drawn" : "; where several share a pixel, the highest is drawn"}`;
  }
  // events lists what came and went between two chosen moments, or in view, about the chosen one.
  function events() {
    if (!$("events").open) return;
    const [a, b] = chosen, wanted = (row) => grouped.of[row] >= 0;
    if (b >= 0) fillEvents(model, wanted, Math.min(a, b) + 1, Math.max(a, b) + 1, -1, native(), point);
    else fillEvents(model, wanted, last(time, chart.from - 1) + 1, last(time, chart.to) + 1, a, native(), point);
  }
  function point(i) { chart.point(i); choose(i, second); }
  // tell says what was held at a time, of which i is the instant, and what happened at that.
  function tell(t, i, total) {
    const sentence = (text) => ` ${text[0].toUpperCase()}${text.slice(1)}.`;
    const near = chart.marks.filter((m) => last(time, m.t) === i), steps = near.filter((m) => m.kind === "step").slice(1);
    let what = t > time[i] ? ` Nothing had changed since ${when(time[i], 1e3)}.` : near.filter((m) => !steps.includes(m)).map((m) => sentence(m.text + (m.kind === "step" ? " began" : ""))).join("") + (steps.length ? ` ${count(steps.length, "more step")} began before the next change.` : "");
    if (t === time[i] && !live) {
      const c = model.changes, all = [];
      for (let d = i ? c.to[i - 1] : 0; d < c.to[i]; d++) if (grouped.of[c.row[d]] >= 0) all.push(d);
      const [d] = all.sort((a, b) => model.idles[c.row[a]] - model.idles[c.row[b]] || Math.abs(c.bytes[b]) - Math.abs(c.bytes[a]));
      if (d !== undefined) what += ` Just then, ${bytes(Math.abs(c.bytes[d]))} ${c.bytes[d] > 0 ? "came" : "went"} (${model.text(meta.rows.cause[c.row[d]])}), by ${model.text(meta.rows.title[c.row[d]])}.`;
    }
    $("here").textContent = `At ${when(t, 1e3)}, ${bytes(total)} (${exactly(total)}) was held.${what}`;
  }
  const sum = (all) => all.reduce((a, b) => a + b, 0);
  function pointed(i) { tell(time[i], i, sum(chart.sums(model.at(i)))); }
  function tip(t, i, group, sums, held, box, left, top) {
    const e = $("tip");
    e.hidden = t === undefined;
    if (e.hidden) return;
    const total = sum(sums), table = make("table");
    const line = (name, v, colour, on) => {
      const tr = make("tr", undefined, on ? "on" : ""), td = make("td");
      if (colour) { const s = make("span", undefined, "swatch"); s.style.setProperty("--c", colour); td.append(s); }
      td.append(name);
      tr.append(td, make("td", bytes(v)));
      return tr;
    };
    table.append(line(when(t, (chart.to - chart.from) / 1000), total, "", true));
    const band = chart.bandAt(t);
    if (band) table.append(line("lowest of this pixel", band[0]), line("highest of this pixel", band[1]));
    const order = [...sums.keys()].filter((g) => sums[g] > 0).reverse();
    for (const o of chart.outlined()) table.append(line(o.name, o.at(t)));
    for (const g of order) table.append(line(grouped.groups[g].name.slice(0, 70), sums[g], colourOf(grouped.groups[g]), g === group));
    e.replaceChildren(table);
    let best = -1;
    for (let row = 0; row < held.length; row++) if (group >= 0 && grouped.of[row] === group && held[row] > 0 && (best < 0 || held[row] > held[best])) best = row;
    if (best >= 0) {
      const list = make("ol");
      list.append(make("li", `${bytes(held[best])} of ${grouped.groups[group].name.slice(0, 40)} is one stack's:`));
      for (const frame of model.text(meta.rows.title[best]).split(" < ")) list.append(make("li", frame.slice(0, 90)));
      e.append(list);
    }
    const near = chart.marks.filter((m) => Math.abs(m.t - t) < (chart.to - chart.from) / 150);
    for (const m of near.slice(0, 3)) e.append(make("div", m.text));
    placeTip(e, box, left, top);
    tell(t, i, total);
  }
  function choose(i, other, t = time[i]) {
    if (other && chosen[0] >= 0) { chosen[1] = i; times[1] = t; } else { chosen = [i, -1]; times = [t, 0]; }
    second = false;
    update();
  }
  function update() {
    $("compare").setAttribute("aria-pressed", String(second || chosen[1] >= 0));
    $("compare").textContent = chosen[1] >= 0 ? "End the comparison" : second ? "Now choose the second moment" : "Compare with a second moment";
    const [a, b] = chosen;
    chart.mark(...times.filter((_, n) => chosen[n] >= 0));
    if (a < 0 || !shown.length) return;
    const held = model.at(b >= 0 ? b : a), before = b >= 0 ? model.at(a) : null, of = (h) => sum(chart.sums(h)), [from, to] = times.map((t) => when(t, 1e3));
    $("signed").hidden = !before;
    const sign = Number($("sign").value);
    const same = before && !grouped.of.some((g, row) => g >= 0 && held[row] !== before[row]);
    $("moment").textContent = same ? `The same at ${from} (A) and at ${to} (B): ${bytes(of(held))}. ${a === b ? "Nothing changed in between." : "What changed in between changed back."}`
      : before ? `From ${from} (A) to ${to} (B): ${signed(of(held) - of(before))}`
      : meta.profile ? `In use: ${bytes(of(held))}` : `Held at ${from}: ${bytes(of(held))}` + (a === peak.at ? ", the peak" : "");
    flame.show(valuesOf(model, grouped.of, held, before, sign), before && (sign > 0 ? "hsl(6 75% 70%)" : "hsl(210 70% 72%)"));
    table.show(grouped.of, held, before, native());
    if (!live) map.show(place, grouped, times[b >= 0 ? 1 : 0], held);
    const recording = live && live.recording ? shellWord(live.recording.path) : "RECORDING", gone = live && live.recording && model.begin + times[0] / 1e6 < live.recording.ms;
    $("command").parentElement.hidden = live && (!live.recording || gone);
    $("command").textContent = before ? `gpumemtrace diff ${recording} --before ${at(0)} --after ${at(1)}` : `gpumemtrace report ${recording} ${live ? "--by line " : ""}--at ${at(0)}`;
    remember();
  }
  // remember lists the events of what is shown, and has the address name it.
  function remember() {
    const state = { of: meta.places[place].name, by: $("group").value, at: !meta.profile && !isNow() && at(0), to: chosen[1] >= 0 && at(1), events: $("events").open && "1", only, process: $("process").value, text: $("filter").value, native: native() && "1", sort: table.order };
    for (const name of Object.keys(state)) if (!state[name]) delete state[name];
    events();
    history.replaceState(null, "", "#" + new URLSearchParams(state));
  }
  // at is a chosen time as --at takes it, to the nanosecond.
  function at(n) { return live ? new Date(Math.round(model.begin + times[n] / 1e6)).toISOString() : (times[n] / 1e9).toFixed(9).replace(/\.?0+$/, "") + "s"; }
  // The part of the address after # names what is shown.
  function restore() {
    const x = new URLSearchParams(location.hash.slice(1)), to = shown.find((p) => meta.places[p].name === x.get("of"));
    const given = ["at", "to"].map((name) => x.has(name) ? live ? (Date.parse(x.get(name)) - model.begin) * 1e6 : Math.round(parseFloat(x.get(name)) * 1e9) : NaN);
    for (const [name, id] of [["by", "group"], ["process", "process"]]) if ([...$(id).options].some((o) => o.value === x.get(name))) $(id).value = x.get(name);
    $("events").open = x.has("events");
    if (x.has("native")) $("native").checked = x.get("native") === "1";
    table.order = x.get("sort") || "";
    drawTree();
    only = x.get("only") || "";
    $("filter").value = x.get("text") || "";
    if (!isNaN(given[0])) { chosen = given.map((t) => isNaN(t) ? -1 : chart.instantAt(t)); times = given.map((t, n) => Math.min(Math.max(t, time[chosen[n]]), chart.end)); }
    go(to === undefined ? shown[0] : to);
  }
  // legend lists the groups, and what lines over them mean.
  function legend(groups) {
    const li = (g) => {
      const e = make("li"), b = make("button");
      b.append(...entryOf(g, meta.profile ? "" : g.most > model.totals[place].peak ? "at its own highest " : "≤ "));
      b.title = (only === g.name ? "Show all" : "Show only " + g.name) + (g.other || meta.profile ? "" : `. It held most at ${when(time[g.at], 1e6)}: ${exactly(g.most)}.`);
      b.setAttribute("aria-pressed", String(only === g.name));
      b.addEventListener("click", () => { only = only === g.name ? "" : g.name; show(); });
      e.append(b);
      return e;
    };
    const { capacity } = meta.places[place], size = make("li"), bar = make("span", undefined, "swatch capacity");
    size.append(bar, "the GPU has ", make("span", bytes(capacity || 0)));
    const outlines = chart.outlined().map((o, n) => {
      const e = make("li"), s = make("span", undefined, "swatch dashed");
      s.style.setProperty("--dash", `${outlineDash(n)[0]}px`);
      e.append(s, o.name + " ", make("span", "≤ " + bytes(o.highest(0, Infinity))));
      return e;
    });
    const marks = Object.entries(markKinds).filter(([kind, { says }]) => says && chart.marks.some((m) => m.kind === kind)).map(([, { says, colour, dash }]) => {
      const e = swatched("li", says, `var(--${colour})`);
      e.firstChild.classList.add(dash.length ? "dots" : "line");
      return e;
    });
    $("legend").replaceChildren(...capacity ? [size] : [], ...outlines, ...[...groups].reverse().map(li), ...marks);
  }
  // show draws what is chosen. again: of a model that goes on where the last one ended. reads: a
  // stack is open, which stays as it is.
  function show(again, reads) {
    if (!shown.length) return;
    const all = groupsOf(model, place, $("group").value), text = $("filter").value.trim();
    const process = $("process").value, found = text && model.matches(text), wanted = (row) => (!found || found[row]) && (!process || model.text(meta.rows.process[row]) === process);
    grouped = narrow(all, only, wanted);
    const filtered = found || process, totals = filtered ? model.peaks(model.place.map((p, row) => wanted(row) ? p : -1), meta.places.length) : model.totals;
    for (const tab of $("places").children) tab.lastChild.textContent = (meta.profile ? "" : "peak ") + bytes(totals[tab.place].peak);
    peak = only ? model.peaks(grouped.of.map((g) => Math.min(g, 0)), 1)[0] : totals[place];
    if (again) chart.follow(model, place, grouped, peak); else chart.show(place, grouped, peak);
    legend(filtered ? drawn(all, wanted) : all.groups);
    span();
    if (reads) return;
    if (again) drawTree();
    update();
    pointed(chart.cursor >= 0 ? chart.cursor : chosen[0]);
  }
  // drawn returns the groups that have something of the rows that are wanted, with the most of that.
  function drawn(all, wanted) {
    const { most, at } = peaksOf(model, all.of.map((g, row) => wanted(row) ? g : -1), all.groups.length);
    return all.groups.map((g, i) => ({ ...g, most: most[i], at: at[i] })).filter((g) => g.most > 0 || g.name === only);
  }
  // drawTree has the flame graph, and the table of windows, show stacks with or without native frames, where there are others.
  function drawTree() {
    $("native").parentElement.hidden = !model.python;
    flame.use(model, native() ? undefined : trees[0] ||= withoutNative(model));
    fillWindows(model, native());
  }
  function go(p) {
    place = p;
    select();
    if (chosen[0] < 0) { chosen = [live ? time.length - 1 : model.totals[p].at, -1]; times = [time[chosen[0]], 0]; }
    show();
  }

  let shown = placesShown();
  if (!shown.length && !live) { fillWindows(model, false); $("failed").hidden = false; $("failed").textContent = `The ${meta.profile ? "profile" : "recording"} has no memory in it.`; return; }
  fillChoices();
  function placesShown() {
    return meta.places.map((_, p) => p).filter((p) => live || model.totals[p].any)
      .sort((a, b) => meta.places[b].gpu - meta.places[a].gpu || (meta.places[a].name < meta.places[b].name ? -1 : 1));
  }
  // fillChoices has the places, and the processes, that can be chosen.
  function fillChoices() {
    const processes = [...new Set(meta.rows.process)].map((i) => model.text(i)).filter(Boolean).sort(), chosen = $("process").value;
    if (chosen && !processes.includes(chosen)) processes.push(chosen);
    const now = [...shown.map((p) => meta.places[p].name), ...processes].join("\n");
    if (now === tabs) return;
    tabs = now;
    $("process").replaceChildren($("process").options[0], ...processes.map((name) => make("option", name)));
    $("process").value = chosen;
    $("process").hidden = processes.length < 2;
    const focused = [...$("places").children].indexOf(document.activeElement);
    $("places").replaceChildren(...shown.map((p) => {
      const tab = make("button");
      tab.append(make("b", meta.places[p].name), make("span"));
      tab.setAttribute("role", "tab");
      tab.place = p;
      tab.addEventListener("click", () => go(p));
      return tab;
    }));
    if (focused >= 0) $("places").children[focused].focus({ preventScroll: true });
    select();
  }
  function select() { for (const tab of $("places").children) { tab.setAttribute("aria-selected", String(tab.place === place)); tab.tabIndex = tab.place === place ? 0 : -1; } }
  // isNow reports whether now is looked at, as it is until a moment is chosen.
  function isNow() { return live && (chosen[0] < 0 || chosen[0] === time.length - 1) && chosen[1] < 0; }
  // renew shows what the agent told last. The cursor and the moments that were chosen stay, and
  // who looks at now goes along, but not while a stack is open.
  function renew() {
    const along = isNow(), then = [...times, time[chart.cursor]].map((t) => model.begin + t / 1e6), name = meta.places[place]?.name;
    use(modelNow());
    const now = then.map((ms) => (ms - model.begin) * 1e6), instants = now.map((t) => Math.max(0, last(time, t + 5e5)));
    times = along ? [time[time.length - 1], 0] : now.slice(0, 2);
    chosen = along ? [time.length - 1, -1] : chosen.map((i, n) => i < 0 ? -1 : instants[n]);
    if (chart.cursor >= 0) chart.cursor = instants[2];
    shown = placesShown();
    place = Math.max(meta.places.findIndex((p) => p.name === name), 0);
    table.model = model; map.model = model; trees.length = 0;
    fillChoices();
    told();
    if (!shown.length) return;
    const reads = $("table").querySelector("details[open]") || flame.zoomed;
    show(true, reads);
  }
  function told() {
    fillNow(live, $("process").value);
    fillNotes([...live.now.notes, ...live.now.loss.map((l) => `${l.value.toLocaleString("en-US")} ${l.help} (${l.name})`)].map(tidy));
    $("none").hidden = shown.length > 0;
  }
  $("places").addEventListener("keydown", (e) => {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[e.key], tabs = [...$("places").children], to = tabs[tabs.indexOf(document.activeElement) + by];
    if (by && to) { to.focus(); go(to.place); }
  });
  $("group").addEventListener("change", () => { only = ""; if (live) renew(); show(); });
  for (const [id, event] of [["filter", "input"], ["process", "change"]]) $(id).addEventListener(event, () => { show(); if (live) told(); });
  $("events").addEventListener("toggle", remember);
  $("native").addEventListener("change", () => { drawTree(); update(); });
  $("sign").addEventListener("change", update);
  $("compare").addEventListener("click", () => { if (chosen[1] >= 0) { chosen[1] = -1; second = false; } else second = !second; update(); });
  const act = {
    in: () => chart.zoom(0.5), out: () => chart.zoom(2), left: () => chart.move(-0.25), right: () => chart.move(0.25), all: () => chart.view(0, chart.end),
    peak: () => { if (!shown.length) return; chart.point(peak.at); choose(peak.at, false); },
  };
  for (const id of Object.keys(act)) $(id).addEventListener("click", act[id]);
  const mark = (by) => {
    const at = chart.cursor >= 0 ? time[chart.cursor] : by > 0 ? -1 : Infinity, all = chart.marks;
    const to = by > 0 ? all.find((m) => time[chart.instantAt(m.t)] > at) : all.findLast((m) => time[chart.instantAt(m.t)] < at);
    if (to) chart.point(chart.instantAt(to.t));
  };
  const step = (by, e) => {
    if (chart.cursor < 0) return chart.point(chart.instantAt((chart.from + chart.to) / 2));
    chart.point(e.shiftKey ? chart.instantAt(time[chart.cursor] + by * (chart.to - chart.from) / 10) : chart.cursor + by);
  };
  const keys = {
    ArrowRight: (e) => step(1, e), ArrowLeft: (e) => step(-1, e), "+": act.in, "=": act.in, "-": act.out, 0: act.all, "[": act.left, "]": act.right, p: act.peak,
    n: () => mark(1), N: () => mark(-1), Home: () => chart.point(0), End: () => chart.point(time.length - 1),
    Enter: (e) => { if (chart.cursor >= 0) choose(chart.cursor, e.shiftKey || second); }, c: () => { if (chart.cursor >= 0) choose(chart.cursor, true); },
    Escape: () => { second = false; chosen[1] = -1; $("tip").hidden = true; update(); },
  };
  $("chart").addEventListener("keydown", (e) => { if (keys[e.key] && !e.ctrlKey && !e.metaKey && !e.altKey) { e.preventDefault(); keys[e.key](e); } });
  addEventListener("scroll", () => { $("tip").hidden = true; }, { passive: true });
  if (live) told();
  if (shown.length) restore();
  dark.addEventListener("change", () => show());
  if (live) follow();
  // follow asks the agent again and again.
  function follow(failed = 0) {
    setTimeout(async () => {
      try {
        if (!document.hidden) { await live.fetch(); renew(); }
        failed = 0;
        $("failed").hidden = true;
      } catch (e) {
        failed++;
        $("failed").hidden = false;
        $("failed").textContent = "The agent does not answer: " + e.message + ". What is shown is of before.";
      }
      follow(failed);
    }, renewEvery * Math.min(1 + failed, 15));
  }
  document.documentElement.dataset.ready = String(Math.round(performance.now())); // milliseconds since it was opened
}

main().catch((e) => { $("failed").hidden = false; $("failed").textContent = "This page cannot be shown: " + e.message; console.error(e); }).finally(() => { $("loading").hidden = true; });
