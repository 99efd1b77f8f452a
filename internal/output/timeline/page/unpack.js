
// unpacking is what a worker runs, which sees nothing of the page. It is sent the pieces of
// a block, and null, and sends the block's columns back, as typed arrays.
function unpacking() {
  // Columns are one after the other: how many numbers there are, how they are written, and
  // those, as varints that Go's encoding/binary writes. Numbers up to 2^53 are exact.
  const types = [Uint8Array, Uint16Array, Uint32Array, Int32Array, Float64Array];
  class Columns {
    constructor() { this.read = []; this.head = new Float64Array(2); this.begin(this.head, false, false); }
    begin(out, sign, sum) { this.out = out; this.sign = sign; this.add = sum; this.at = this.low = this.high = this.shift = this.sum = 0; }
    // next goes on after the last number of a column, or of what comes before it.
    next() {
      if (this.out === this.head) return this.begin(new types[this.head[1] >> 2](this.head[0]), this.head[1] & 1, this.head[1] & 2);
      this.read.push(this.out);
      this.begin(this.head, false, false);
    }
    take(bytes) {
      for (let from = 0; from < bytes.length;) {
        from = this.fill(bytes, from);
        while (this.at === this.out.length) this.next();
      }
    }
    // fill reads numbers until the column is full, or those bytes end.
    fill(bytes, from) {
      const { out, sign, add } = this, length = out.length;
      let { at, low, high, shift, sum } = this; // of the number that is read: its low 28 bits, and what is above
      while (from < bytes.length && at < length) {
        const x = bytes[from++];
        if (shift < 28) low |= (x & 127) << shift;
        else high += (x & 127) * 2 ** (shift - 28);
        shift += 7;
        if (x > 127) continue;
        let v = low;
        if (high) { v += high * 2 ** 28; if (sign) v = low & 1 ? -(v + 1) / 2 : v / 2; }
        else if (sign) v = low >>> 1 ^ -(low & 1);
        if (add) v = sum += v;
        out[at++] = v;
        low = high = shift = 0;
      }
      this.at = at; this.low = low; this.high = high; this.shift = shift; this.sum = sum;
      return from;
    }
    all() {
      if (this.out !== this.head || this.at + this.shift > 0) throw new Error("a column is cut");
      return this.read;
    }
  }

  // bytesOf returns what base64 says.
  function bytesOf(base64) {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(base64);
    const text = atob(base64), out = new Uint8Array(text.length);
    for (let i = 0; i < out.length; i++) out[i] = text.charCodeAt(i);
    return out;
  }

  async function unpack(from) {
    const columns = new Columns(), reader = from.getReader();
    for (let x; !(x = await reader.read()).done;) columns.take(x.value);
    return columns.all();
  }

  const gunzip = new DecompressionStream("gzip"), to = gunzip.writable.getWriter();
  unpack(gunzip.readable).then(
    (columns) => postMessage({ columns }, columns.map((c) => c.buffer)),
    (e) => postMessage({ failed: e.message }),
  ).then(close);
  onmessage = ({ data: piece }) => { (piece === null ? to.close() : to.write(bytesOf(piece))).catch(() => {}); }; // who reads is told
}
