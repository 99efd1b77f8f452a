"""Reads pprof's files: protocol buffers of github.com/google/pprof/proto/profile.proto, gzipped."""
import gzip


def varint(data, at):
    n = shift = 0
    while True:
        byte = data[at]
        at += 1
        n |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return n, at


def fields(data):
    """The fields of a message: (number, an integer or bytes)."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value, at = varint(data, at)
        elif tag & 7 == 2:
            n, at = varint(data, at)
            value, at = data[at:at + n], at + n
        else:
            raise ValueError(f"wire type {tag & 7}")
        yield tag >> 3, value


def integers(data):
    """A packed field of int64."""
    at = 0
    while at < len(data):
        n, at = varint(data, at)
        yield n - (1 << 64) if n >> 63 else n


def sums(path, value, by, **where):
    """The sums of a value, such as inuse_space, by the label by, over the samples whose labels are
    among those that where gives."""
    with gzip.open(path) as f:
        message = list(fields(f.read()))
    strings = [v.decode() for number, v in message if number == 6]
    types = [strings[dict(fields(v)).get(1, 0)] for number, v in message if number == 1]
    out = {}
    for number, sample in message:
        if number != 2:
            continue
        values, labels = [], {}
        for n, v in fields(sample):
            if n == 2:  # packed, or one by one
                values += integers(v) if isinstance(v, bytes) else [v]
            elif n == 3:
                label = dict(fields(v))
                labels[strings[label[1]]] = strings[label.get(2, 0)] or label.get(3, 0)
        if all(labels.get(k) in v for k, v in where.items()):
            key = labels.get(by, "")
            out[key] = out.get(key, 0) + values[types.index(value)]
    return {k: n for k, n in out.items() if n}
