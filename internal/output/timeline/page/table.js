
const shownFirst = () => innerWidth < 640 ? 10 : 25;

// stackOf returns a stack that can be opened: what labels say of it, and its frames.
function stackOf(model, row, native) {
  const more = make("details"), list = make("ol"), { rows } = model.meta;
  more.append(make("summary", model.text(rows.title[row]) || "[no stack]"), list);
  more.addEventListener("toggle", () => {
    if (!more.open || list.children.length) return;
    for (const name of ["process", "category", "module", "operator"]) if (model.text(rows[name][row])) list.append(make("li", `${name}: ${model.text(rows[name][row])}`));
    const whole = model.stack(row), own = whole.filter((i) => !isNative(model.frame(i))), shown = native || !own.some((i) => isPython(model.frame(i))) ? whole : own;
    for (const i of shown) { const f = model.frame(i); list.append(make("li", (f.name || f.short) + " " + f.where)); }
    if (shown.length < whole.length) list.append(make("li", `and ${count(whole.length - shown.length, "native frame")}`));
  });
  return more;
}

// A Table lists what was live, or what changed. order is the column that it is sorted by, in
// lower case, with a minus before it where the largest comes first.
class Table {
  constructor(model, sorted) { this.model = model; this.sorted = sorted; this.order = ""; }
  show(of, held, before, native) {
    const all = [];
    let sum = 0;
    for (let row = 0; row < this.model.rows; row++) {
      if (of[row] < 0) continue;
      const by = before ? held[row] - before[row] : held[row];
      if (by) all.push({ row, by, a: before ? before[row] : 0, b: held[row] });
      sum += held[row];
    }
    const columns = this.columns(all, before, sum, native), down = this.order.startsWith("-"), name = this.order.replace(/^-/, "");
    const column = columns.find((c) => c.name.toLowerCase() === name);
    const compare = (x, y) => x < y ? -1 : x > y ? 1 : 0;
    all.sort((x, y) => column && (down ? -1 : 1) * compare(column.key(x), column.key(y)) || Math.abs(y.by) - Math.abs(x.by) || x.row - y.row);
    this.head(columns, column, down);
    this.fill(columns, all, before, shownFirst());
  }
  // columns returns those of the table: name, class, what a cell has, and what it is sorted by.
  columns(all, before, sum, native) {
    const { model } = this, { rows } = model.meta, some = (name) => rows[name] && all.some((x) => model.text(rows[name][x.row]));
    const figure = (name, key, show, title) => ({ name, key, className: "n", cell: (td, x) => { td.textContent = show(x); if (title) td.title = title(x); } });
    const label = (name, column, more = "", title = "") => ({
      name, key: (x) => model.text(rows[column][x.row]), className: "l wide" + more,
      cell: (td, x) => { td.append(...model.text(rows[column][x.row]).split(more ? /(?<=[/.:])/ : undefined).flatMap((part) => [part, make("wbr")])); td.title = title; },
    });
    const changed = figure("CHANGE", (x) => x.by, (x) => signed(x.by), (x) => exactly(x.by)), { cell } = changed;
    changed.cell = (td, x) => { cell(td, x); td.classList.add(x.by > 0 ? "up" : "down"); };
    const part = figure("OF ALL", (x) => x.by, (x) => (100 * x.by / sum).toFixed(1) + "%");
    part.className = "n wide";
    return [
      ...before ? [changed, figure("A", (x) => x.a, (x) => bytes(x.a)), figure("B", (x) => x.b, (x) => bytes(x.b))] : [figure("BYTES", (x) => x.by, (x) => bytes(x.by), (x) => exactly(x.by)), part],
      all.some((x) => rows.grew[x.row] > 0) && figure("GREW", (x) => rows.grew[x.row], (x) => rows.grew[x.row] > 0 ? signed(rows.grew[x.row]) : "", () => isLive ? "lately" : "over the last training steps"),
      { ...label("FOR", "cause"), className: "l" },
      new Set(all.map((x) => rows.process[x.row])).size > 1 && label("PROCESS", "process"),
      label("OWNER", "owner"),
      some("category") && label("CATEGORY", "category"),
      some("holder") && label("HOLDER", "holder", " path", isLive ? "the object that holds most of it" : "the object that held most of it at the end"),
      some("module") && label("MODULE", "module", " path"),
      some("operator") && label("OPERATOR", "operator"),
      { name: "STACK", className: "s", key: (x) => model.text(rows.title[x.row]), cell: (td, x) => td.append(stackOf(model, x.row, native)) },
    ].filter(Boolean);
  }
  head(columns, sorted, down) {
    const row = make("tr"), focused = document.activeElement.closest && document.activeElement.closest("#table th");
    for (const c of columns) {
      const th = make("th", undefined, c.className), b = make("button", c.name);
      th.scope = "col";
      if (c === sorted) th.setAttribute("aria-sort", down ? "descending" : "ascending");
      b.addEventListener("click", () => {
        const name = c.name.toLowerCase(), largest = c.className.startsWith("n"); // largest numbers first, and A before B
        this.order = c !== sorted ? (largest ? "-" : "") + name : (down ? "" : "-") + name;
        this.sorted();
      });
      th.append(b);
      row.append(th);
    }
    $("table").tHead.replaceChildren(row);
    if (focused) for (const b of row.querySelectorAll("button")) if (b.textContent === focused.textContent) b.focus({ preventScroll: true });
  }
  // fill lists so many rows.
  fill(columns, all, before, most) {
    $("table").tBodies[0].replaceChildren(...all.slice(0, most).map((x) => {
      const tr = make("tr");
      for (const c of columns) { const td = make("td", undefined, c.className); c.cell(td, x); tr.append(td); }
      return tr;
    }));
    const more = $("more");
    more.textContent = all.length ? "" : before ? "Nothing differs." : "Nothing was live.";
    if (all.length <= most) return;
    const button = make("button", `Show more: ${(all.length - most).toLocaleString("en-US")} rows, together ${bytes(all.slice(most).reduce((n, x) => n + x.by, 0))}`);
    button.addEventListener("click", () => { this.fill(columns, all, before, most * 4); $("table").tBodies[0].rows[most].querySelector("summary").focus(); });
    more.append(button);
  }
}

// listed returns a table of texts, of which the first columns are numbers, and cells after them.
function listed(columns, rows, numbers, after = () => []) {
  const table = make("table", undefined, "list"), scroll = make("div", undefined, "scroll"), body = table.createTBody();
  const cells = (tag, texts) => texts.map((text, i) => make(tag, text, i >= numbers ? "" : i < 2 ? "n" : "n wide"));
  table.createTHead().insertRow().append(...cells("th", columns));
  rows.forEach((texts, i) => body.insertRow().append(...cells("td", texts), ...after(i)));
  scroll.append(table);
  return scroll;
}

// passage returns text and tables below a heading.
const passage = (p) => [make("h2", p.title), ...p.says.map((text) => make("p", text)), ...(p.tables || []).flatMap((t) => [make("h3", t.title), listed(t.columns, t.cells, t.numbers)])];

// fillPassages shows in what this run differs from the one that it is compared with, and of the
// requests that failed why, or what else is wrong, the first whole. choose is called with the time of one.
function fillPassages({ compared, failures }, choose) {
  $("compared").hidden = !compared;
  if (compared) $("compared").append(...passage(compared));
  $("refused").hidden = !failures;
  for (const [i, p] of (failures || []).entries()) {
    const more = make("details"), button = make("button", "Show that moment"), [title, ...rest] = passage(p);
    const summary = make("summary");
    summary.append(title);
    button.addEventListener("click", () => choose(p.at));
    more.open = !i;
    more.append(summary, ...rest, button);
    $("refused").append(more);
  }
}

// fillWindows lists the tensors that were seen in windows.
function fillWindows(model, native) {
  const all = model.meta.windowed || [];
  $("windowed").hidden = !all.length;
  $("windowed").replaceChildren(...all.flatMap((w) => {
    const stack = (i) => { const td = make("td", undefined, "s"); td.append(w.rows[i] < 0 ? "[tensors from before the window]" : stackOf(model, w.rows[i], native)); return [td]; };
    return [make("h2", "Tensors of " + w.title), make("p", w.about, "quiet"), listed([...w.columns, "STACK"], w.cells, w.columns.length, stack), w.left_out ? make("p", `${count(w.left_out, "stack")} more: gpumemtrace report RECORDING --windows`, "quiet") : ""];
  }));
}
