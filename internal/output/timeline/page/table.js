
const shownFirst = () => innerWidth < 640 ? 10 : 25;

// fillTable lists what was live, or what changed: so many rows of it.
function fillTable(model, place, held, before, most = shownFirst()) {
  const meta = model.meta.rows, all = [];
  let sum = 0;
  for (let row = 0; row < model.rows; row++) {
    if (model.place[row] !== place) continue;
    const v = before ? held[row] - before[row] : held[row];
    if (v) all.push([row, v]);
    sum += held[row];
  }
  all.sort((a, b) => Math.abs(b[1]) - Math.abs(a[1]) || a[0] - b[0]);
  const rows = all.slice(0, most), some = (column) => rows.some(([row]) => model.text(column[row]));
  const grew = rows.some(([row]) => meta.grew[row] > 0);
  const columns = [
    before ? ["CHANGE", "n", ([, v]) => { const e = make("td", signed(v), "n " + (v > 0 ? "up" : "down")); e.title = exactly(v); return e; }] : ["BYTES", "n", ([, v]) => { const e = make("td", bytes(v), "n"); e.title = exactly(v); return e; }],
    before ? ["A", "n", ([row]) => make("td", bytes(before[row]), "n")] : ["OF ALL", "n wide", ([, v]) => make("td", (100 * v / sum).toFixed(1) + "%", "n wide")],
    before && ["B", "n", ([row]) => make("td", bytes(held[row]), "n")],
    grew && ["GREW", "n", ([row]) => { const e = make("td", meta.grew[row] > 0 ? signed(meta.grew[row]) : "", "n"); e.title = "over the last training steps"; return e; }],
    ["FOR", "l", ([row]) => make("td", model.text(meta.cause[row]), "l")],
    ["OWNER", "l wide", ([row]) => make("td", model.text(meta.owner[row]), "l wide")],
    some(meta.category) && ["CATEGORY", "l wide", ([row]) => make("td", model.text(meta.category[row]), "l wide")],
    some(meta.module) && ["MODULE", "l wide", ([row]) => make("td", model.text(meta.module[row]), "l wide")],
    ["STACK", "s", ([row]) => {
      const td = make("td", undefined, "s"), more = make("details"), list = make("ol");
      more.append(make("summary", model.text(meta.title[row]) || "[no stack]"), list);
      more.addEventListener("toggle", () => {
        if (more.open && !list.children.length) for (const i of model.stack(row)) { const f = model.frame(i); list.append(make("li", (f.name || f.short) + " " + f.where)); }
      });
      td.append(more);
      return td;
    }],
  ].filter(Boolean);
  const head = make("tr");
  for (const [name, className] of columns) { const th = make("th", name, className); th.scope = "col"; head.append(th); }
  $("table").tHead.replaceChildren(head);
  $("table").tBodies[0].replaceChildren(...rows.map((x) => { const tr = make("tr"); for (const [, , cell] of columns) tr.append(cell(x)); return tr; }));
  const rest = all.slice(most).reduce((n, x) => n + x[1], 0), more = $("more");
  more.textContent = all.length ? "" : before ? "Nothing differs." : "Nothing was live.";
  if (all.length > most) {
    const button = make("button", `Show more: ${(all.length - most).toLocaleString("en-US")} rows, together ${bytes(rest)}`);
    button.addEventListener("click", () => { fillTable(model, place, held, before, most * 4); $("table").tBodies[0].rows[most].querySelector("summary").focus(); });
    more.append(button);
  }
}
