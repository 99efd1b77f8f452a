
// unpacked returns the columns of each block. Each has a worker of its own, which unpacks
// its pieces while the page is still being read.
async function unpacked() {
  const source = URL.createObjectURL(new Blob([`(${unpacking})()`])), workers = {}, pieces = document.getElementsByClassName("piece");
  const columns = ["meta", "times", "bytes", "rows", "lives"].map((name) => new Promise((done, failed) => {
    const worker = workers[name] = new Worker(source);
    worker.onerror = (e) => failed(new Error(e.message));
    worker.onmessage = ({ data }) => data.failed ? failed(new Error(`${name}: ${data.failed}`)) : done([name, data.columns]);
  }));
  // The last piece may have been read in part, until the page is.
  const take = (left) => {
    while (pieces.length > left) {
      const piece = pieces[0];
      workers[piece.dataset.block].postMessage(piece.textContent);
      piece.remove();
    }
  };
  const watch = new MutationObserver(() => take(1));
  watch.observe(document.body, { childList: true });
  addEventListener("DOMContentLoaded", () => {
    watch.disconnect();
    take(0);
    for (const worker of Object.values(workers)) worker.postMessage(null);
  });
  return Object.fromEntries(await Promise.all(columns));
}

const metaOf = ({ meta: [text] }) => JSON.parse(new TextDecoder().decode(text));

// changesOf: instants have times, and the deltas [to[i-1], to[i]) lead to instant i.
function changesOf({ times: [time, to], rows: [row], bytes: [bytes] }) {
  return { n: time.length, time, to, row, bytes };
}

// livesOf: where memory lay, by when it came. Until a time there are only some moments.
function livesOf({ lives: [[until], moments, row, from, size, begin, lasted] }) {
  const n = row.length, tensor = new Uint8Array(n), end = new Float64Array(n);
  for (let i = 0; i < n; i++) {
    end[i] = lasted[i] ? begin[i] + lasted[i] - 1 : Infinity;
    tensor[i] = row[i] & 1;
    row[i] >>>= 1;
  }
  return { n, until, moments, row, from, size, begin, end, tensor };
}
