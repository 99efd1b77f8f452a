
// unpack returns the content of a data block of the page.
async function unpack(id) {
  const e = $(id), text = e.textContent;
  e.remove();
  const gunzip = new DecompressionStream("gzip"), to = gunzip.writable.getWriter();
  to.write(bytesOf(text)).catch(() => {}); // who reads is told
  to.close().catch(() => {});
  return new Uint8Array(await new Response(gunzip.readable).arrayBuffer());
}

// bytesOf returns what base64 says.
function bytesOf(base64) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
  const text = atob(base64), out = new Uint8Array(text.length);
  for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

// A Reader reads varints as Go's encoding/binary writes them. Numbers up to 2^53 are exact.
class Reader {
  constructor(b) { this.b = b; this.at = 0; }
  unsigned() { return this.column(1, Float64Array)[0]; }
  // column reads n numbers into an array of a type; sum adds each to those before, and
  // sign unfolds them.
  column(n, type, sum, sign) {
    const out = new type(n), b = this.b;
    let at = this.at;
    for (let i = 0; i < n; i++) {
      let v = b[at++];
      if (v > 127) {
        let x = b[at++];
        v = v & 127 | (x & 127) << 7;
        if (x > 127) {
          x = b[at++];
          v |= (x & 127) << 14;
          if (x > 127) {
            x = b[at++];
            v |= (x & 127) << 21;
            for (let scale = 2 ** 28; x > 127; scale *= 128) { x = b[at++]; v += (x & 127) * scale; }
          }
        }
      }
      out[i] = v;
    }
    this.at = at;
    if (sign) for (let i = 0; i < n; i++) { const v = out[i]; out[i] = v < 2 ** 31 ? v >>> 1 ^ -(v & 1) : v % 2 ? -(v + 1) / 2 : v / 2; }
    if (sum) for (let i = 0, all = 0; i < n; i++) out[i] = all += out[i];
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
