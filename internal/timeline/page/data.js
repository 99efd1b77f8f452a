
// unpack returns the content of a data block of the page.
async function unpack(id) {
  const e = $(id), text = atob(e.textContent);
  e.remove();
  const raw = new Uint8Array(text.length);
  for (let i = 0; i < raw.length; i++) raw[i] = text.charCodeAt(i);
  const stream = new Blob([raw]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// A Reader reads varints as Go's encoding/binary writes them. Numbers up to 2^53 are exact.
class Reader {
  constructor(b) { this.b = b; this.at = 0; }
  unsigned() {
    const b = this.b;
    let x = b[this.at++];
    if (x < 128) return x;
    let v = x & 127, scale = 128;
    do {
      x = b[this.at++];
      v += (x & 127) * scale;
      scale *= 128;
    } while (x >= 128);
    return v;
  }
  signed() {
    const v = this.unsigned(), half = Math.floor(v / 2);
    return v % 2 ? -half - 1 : half;
  }
  // column reads n numbers into an array of a type; sum adds each to those before.
  column(n, type, sum, sign) {
    const out = new type(n);
    let all = 0;
    for (let i = 0; i < n; i++) {
      const v = sign ? this.signed() : this.unsigned();
      out[i] = sum ? (all += v) : v;
    }
    return out;
  }
}

// changes: instants have times, and the deltas [to[i-1], to[i]) lead to instant i.
function readChanges(b) {
  const r = new Reader(b), n = r.unsigned(), deltas = r.unsigned();
  return {
    n, time: r.column(n, Float64Array, true), to: r.column(n, Uint32Array, true),
    row: r.column(deltas, Uint32Array), bytes: r.column(deltas, Float64Array, false, true),
  };
}

// lives: where memory lay, by when it came. Until a time there are only some moments.
function readLives(b) {
  const r = new Reader(b), n = r.unsigned(), moments = r.unsigned(), until = r.unsigned();
  const l = {
    n, until, moments: r.column(moments, Float64Array, true), row: r.column(n, Uint32Array), from: r.column(n, Float64Array, true, true),
    size: r.column(n, Float64Array), begin: r.column(n, Float64Array, true), end: r.column(n, Float64Array), tensor: new Uint8Array(n),
  };
  for (let i = 0; i < n; i++) {
    l.end[i] = l.end[i] ? l.begin[i] + l.end[i] - 1 : Infinity;
    l.tensor[i] = l.row[i] & 1;
    l.row[i] >>>= 1;
  }
  return l;
}
