
const mostEvents = 1000;

// eachEvent calls f with the instant, the row and the bytes of each allocation and free of
// the instants [from, to), of rows that are wanted. A tensor comes out of cached memory:
// what that lost is no event, but what a segment of it took from the driver, or gave back, is.
function eachEvent(model, wanted, from, to, f) {
  const { to: ends, row: rows, bytes: more } = model.changes, is = (text) => model.meta.strings.indexOf(text), { cause } = model.meta.rows;
  const cached = is("cached, unused"), tensors = is("tensors"), every = !model.idles.some((idle, row) => !idle && wanted(row));
  for (let i = from; i < to; i++) {
    let segment = -1, taken = 0;
    for (let d = i ? ends[i - 1] : 0; d < ends[i]; d++) {
      const row = rows[d];
      if (cause[row] === cached || cause[row] === tensors) taken += more[d];
      if (!wanted(row)) continue;
      if (cause[row] === cached) segment = row;
      else if (every || !model.idles[row]) f(i, row, more[d]);
    }
    if (segment >= 0 && taken) f(i, segment, taken);
  }
}

// fillEvents lists the allocations and frees of the instants [from, to), or where there are
// too many those about an instant.
function fillEvents(model, wanted, from, to, about, native, choose) {
  const { meta, changes: { time } } = model, rows = meta.rows, several = new Set(rows.process).size > 1;
  let n = 0, before = 0, came = 0, went = 0;
  eachEvent(model, wanted, from, to, (i, row, by) => { n++; if (i < about) before++; if (by > 0) came += by; else went -= by; });
  const first = Math.max(0, Math.min(before - mostEvents / 5, n - mostEvents)), shown = [];
  let k = 0;
  eachEvent(model, wanted, from, to, (i, row, by) => { if (k++ >= first && shown.length < mostEvents) shown.push([i, row, by]); });
  const columns = [
    ["TIME", "n", (td, i) => { const b = make("button", duration(time[i], 1e3)); b.addEventListener("click", () => choose(i)); td.append(b); }],
    ["SIZE", "n", (td, i, row, by) => { td.textContent = signed(by); td.title = exactly(by); td.classList.add(by > 0 ? "up" : "down"); }],
    ["FOR", "l", (td, i, row) => { td.textContent = model.text(rows.category[row]) || model.text(rows.cause[row]); }],
    ["OWNER", "l wide", (td, i, row) => { td.textContent = model.text(rows.owner[row]); }],
    several && ["PROCESS", "l wide", (td, i, row) => { td.textContent = model.text(rows.process[row]); }],
    ["STACK", "s", (td, i, row) => td.append(stackOf(model, row, native))],
  ].filter(Boolean);
  const head = make("tr"), table = $("eventlist");
  for (const [name, className] of columns) { const th = make("th", name, className); th.scope = "col"; head.append(th); }
  table.tHead.replaceChildren(head);
  table.tBodies[0].replaceChildren(...shown.map((x) => {
    const tr = make("tr", undefined, x[0] === about ? "on" : "");
    for (const [, className, cell] of columns) { const td = make("td", undefined, className); cell(td, ...x); tr.append(td); }
    return tr;
  }));
  const left = n - shown.length;
  $("eventstext").textContent = !n ? "Nothing came or went."
    : `${count(n, meta.exact ? "event" : "difference")}${meta.exact ? "" : " between the moments that are known"}: ${bytes(came)} came and ${bytes(went)} went.`
    + (left ? ` Listed are ${count(shown.length, "row")} from ${duration(time[shown[0][0]], 1e3)} on; ${left.toLocaleString("en-US")} more are not. Zoom in to see them.` : "");
}
