
// valuesOf returns what each row of a group counts for: what it holds at a moment, or by
// how much more than at another one, of one sign.
function valuesOf(model, of, held, before, sign) {
  const out = new Float64Array(model.rows);
  for (let row = 0; row < model.rows; row++) {
    if (of[row] < 0) continue;
    const v = before ? (held[row] - before[row]) * sign : held[row];
    if (v > 0) out[row] = v;
  }
  return out;
}

// A Flame draws stacks: the outermost frame above, each as wide as what it holds.
class Flame {
  constructor(model) {
    this.box = $("flame");
    this.use(model);
    this.box.addEventListener("keydown", (e) => this.key(e));
    this.box.addEventListener("pointermove", (e) => {
      if (e.pointerType !== "mouse") return;
      if (e.target.node) { this.tell(e.target.node); tipAt(e, ...this.about(e.target.node)); } else $("tip").hidden = true;
    });
    this.box.addEventListener("pointerleave", () => { $("tip").hidden = true; });
    new ResizeObserver(() => { if (this.values && this.width !== this.box.clientWidth) this.draw(); }).observe(this.box);
  }
  // use is for stacks of another model, or another tree of them.
  use(model, tree = { nodes: model.meta.nodes, of: model.meta.rows.node }) {
    this.model = model; this.tree = tree; this.zoomed = 0; this.values = null;
    const nodes = tree.nodes;
    this.children = Array.from(nodes, () => null);
    for (let n = 1; n < nodes.length; n++) (this.children[nodes[n][0]] ||= []).push(n);
  }
  show(values, colour) {
    const nodes = this.tree.nodes, held = new Float64Array(nodes.length);
    for (let row = 0; row < values.length; row++) held[this.tree.of[row]] += values[row];
    for (let n = nodes.length - 1; n > 0; n--) held[nodes[n][0]] += held[n];
    this.held = held; this.values = values; this.colour = colour;
    if (!held[this.zoomed]) this.zoomed = 0;
    this.draw();
    const drawn = Array.from(this.byNode.keys(), (n) => this.model.frame(this.tree.nodes[n][1]));
    const kinds = colour ? [] : frameKinds.filter((kind) => drawn.some((frame) => frameKinds.find((k) => k.is(frame)) === kind));
    $("flamekey").replaceChildren(...kinds.map((kind) => swatched("span", kind.name, kind.colour(0.5))));
  }
  draw() {
    const focus = this.box.contains(document.activeElement) ? document.activeElement.node : -1;
    this.width = this.box.clientWidth;
    const parts = [], W = this.width - 2, above = [];
    for (let n = this.zoomed; n; n = this.tree.nodes[n][0]) above.unshift(n);
    let deepest = 0;
    const place = (n, x, width, depth) => {
      if (n) { parts.push([n, x, width, depth]); deepest = Math.max(deepest, depth + 1); }
      const below = (this.children[n] || []).filter((c) => this.held[c] > 0).sort((a, b) => this.held[b] - this.held[a]);
      let left = width * (n ? below.reduce((sum, c) => sum + this.held[c], 0) / this.held[n] : 1);
      for (const [i, c] of below.entries()) {
        const w = width * this.held[c] / this.held[n];
        if (w < 1.5 || parts.length > 4000) {
          if (left > 3) { parts.push([0, x, left, n ? depth + 1 : depth, below.length - i]); deepest = Math.max(deepest, n ? depth + 2 : 1); }
          break;
        }
        left -= w;
        place(c, x, w, n ? depth + 1 : depth);
        x += w;
      }
    };
    above.slice(0, -1).forEach((n, depth) => { parts.push([n, 0, W, depth]); deepest = depth + 1; });
    if (this.held[this.zoomed] > 0) place(this.zoomed, 0, W, Math.max(above.length - 1, 0));
    this.byNode = new Map();
    const made = parts.map(([n, x, width, depth, narrower], i) => {
      if (narrower) {
        const e = make("span", width > 40 ? count(narrower, "narrower one") : "", "f rest");
        e.style.left = x + "px"; e.style.width = width + "px"; e.style.top = depth * 19 + "px";
        return e;
      }
      const frame = this.model.frame(this.tree.nodes[n][1]), e = make("button", width > 26 ? frame.short || "?" : "", "f");
      e.style.left = x + "px"; e.style.width = Math.max(width, 1) + "px"; e.style.top = depth * 19 + "px";
      e.style.setProperty("--c", this.colour || frameColour(frame));
      e.tabIndex = i === 0 ? 0 : -1;
      e.node = n; e.depth = depth; e.x = x;
      e.setAttribute("role", "treeitem");
      e.setAttribute("aria-label", frame.short + ", " + bytes(this.held[n]));
      e.addEventListener("click", () => this.zoom(n));
      e.addEventListener("focus", () => this.tell(n));
      this.byNode.set(n, e);
      return e;
    });
    this.box.replaceChildren(...made);
    this.box.style.height = Math.max(40, deepest * 19 + 2) + "px";
    if (!made.length) this.box.append(make("p", "Nothing.", "quiet"));
    if (focus > 0 && this.byNode.get(focus)) this.byNode.get(focus).focus();
  }
  // about returns what is told of a frame.
  about(n) {
    const f = this.model.frame(this.tree.nodes[n][1]);
    return [`${bytes(this.held[n])} (${(100 * this.held[n] / this.held[0]).toFixed(1)}%, ${exactly(this.held[n])})`, f.name || f.short, f.where];
  }
  tell(n) { const [held, ...frame] = this.about(n); $("frame").textContent = held + ": " + frame.join(" "); }
  zoom(n) { this.zoomed = this.zoomed === n ? this.tree.nodes[n][0] : n; this.draw(); const e = this.byNode.get(n); if (e) e.focus(); }
  key(e) {
    const at = e.target;
    if (!at.node) return;
    const go = (n) => { const to = this.byNode.get(n); if (to) { at.tabIndex = -1; to.tabIndex = 0; to.focus(); } };
    const beside = (by) => {
      const row = [...this.byNode.values()].filter((o) => o.depth === at.depth).sort((a, b) => a.x - b.x), to = row[row.indexOf(at) + by];
      if (to) go(to.node);
    };
    const keys = {
      ArrowUp: () => go(this.tree.nodes[at.node][0]),
      ArrowDown: () => go((this.children[at.node] || []).filter((c) => this.byNode.has(c)).sort((a, b) => this.held[b] - this.held[a])[0]),
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
      Escape: () => { if (this.zoomed) this.zoom(this.zoomed); },
    };
    if (keys[e.key]) { keys[e.key](); e.preventDefault(); e.stopPropagation(); }
  }
}

const isPython = (frame) => /\.py(:\d+)?$/.test(frame.where) || frame.where.startsWith("<");
const isNative = (frame) => !isPython(frame) && !/^(\[|cu[A-Z]\w*$)/.test(frame.name); // a name in brackets, or CUDA's function that was called

// ownFrames returns the frames of a row's stack without native ones. Of a stack that has none of
// Python's, as in autograd's threads, these are the few that tell it from others.
function ownFrames(model, row) {
  const stack = model.stack(row), own = stack.filter((i) => !isNative(model.frame(i)));
  if (!model.python || own.some((i) => isPython(model.frame(i)))) return model.python ? own : stack;
  const known = new Map(stack.map((i) => [model.frame(i).short, i]));
  for (const name of model.text(model.meta.rows.title[row]).split(" < ")) {
    const i = known.has(name) ? known.get(name) : model.named(name);
    if (name && !own.includes(i)) own.push(i);
  }
  return own;
}

// withoutNative returns the tree of all stacks without native frames.
function withoutNative(model) {
  const nodes = [[0, 0]], known = new Map(), at = new Map();
  const below = (parent, frame) => {
    const key = parent + " " + frame;
    if (!known.has(key)) { known.set(key, nodes.length); nodes.push([parent, frame]); }
    return known.get(key);
  };
  const of = model.meta.rows.node.map((leaf, row) => {
    if (!at.has(leaf)) at.set(leaf, ownFrames(model, row).reduceRight(below, 0));
    return at.get(leaf);
  });
  return { nodes, of };
}

// A frame's colour says what it is, and its shade tells files apart.
const frameKinds = [
  { name: "Python", is: isPython, colour: (part) => `hsl(${28 + 22 * part} 85% ${64 + 8 * part}%)` },
  { name: "compiled code", is: isNative, colour: (part) => `hsl(${195 + 40 * part} 55% ${66 + 8 * part}%)` },
  { name: "CUDA's function that was called, or what the memory is for", is: () => true, colour: (part) => `hsl(215 12% ${68 + 8 * part}%)` },
];

function frameColour(frame) {
  let sum = 0;
  for (const x of frame.where || frame.name) sum = (sum * 31 + x.codePointAt(0)) % 997;
  return frameKinds.find((kind) => kind.is(frame)).colour(sum / 997);
}
