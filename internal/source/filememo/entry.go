package filememo

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"io"
	"sync"
)

// An entry, sealed, is a checksum of all else (SHA-256, over the name too), the
// sum of what was read, and then as unsigned varints: the number of spans, for each
// the blocks left out before it and those in it; and last the value.
type entry struct {
	spans []span
	sum   Sum
	value []byte
}

// magic begins a sealed entry: its form, of version 1.
const magic = "gmtmemo\x01"

const headSize = len(magic) + 2*sha256.Size

// errForeign is the error of an entry that is damaged or not of this form.
var errForeign = errors.New("not an entry of the cache, or a damaged one")

// maxEntry bounds a sealed entry, in bytes.
const maxEntry = 64 << 20

// seal returns the sealed entry of a value, and the sum of what was read for it.
func seal(name string, r *recorder, value []byte) ([]byte, Sum, error) {
	e := entry{spans: r.spans()}
	sum, err := e.content(name, File{ReaderAt: r, Size: r.file.Size})
	if err != nil {
		return nil, Sum{}, err
	}
	out := make([]byte, headSize, headSize+16*len(e.spans)+16+len(value))
	copy(out, magic)
	copy(out[len(magic)+sha256.Size:], sum[:])
	out = binary.AppendUvarint(out, uint64(len(e.spans)))
	end := int64(0)
	for _, s := range e.spans {
		out = binary.AppendUvarint(out, uint64(s.first-end))
		out = binary.AppendUvarint(out, uint64(s.count))
		end = s.first + s.count
	}
	out = append(out, value...)
	check := checksum(name, out)
	copy(out[len(magic):], check[:])
	return out, sum, nil
}

// unseal returns what seal sealed under the name. The value is part of sealed.
func unseal(name string, sealed []byte) (e entry, err error) {
	if len(sealed) < headSize || string(sealed[:len(magic)]) != magic {
		return e, errForeign
	}
	if check := checksum(name, sealed); !bytes.Equal(check[:], sealed[len(magic):][:sha256.Size]) {
		return e, errForeign
	}
	copy(e.sum[:], sealed[len(magic)+sha256.Size:])
	rest := sealed[headSize:]
	number := func() int64 {
		n, size := binary.Uvarint(rest)
		if size <= 0 || n > maxBlocks {
			err = errForeign
			return 0
		}
		rest = rest[size:]
		return int64(n)
	}
	end, total := int64(0), int64(0)
	for i := number(); i > 0 && err == nil; i-- {
		s := span{end + number(), number()}
		end = s.first + s.count
		if total += s.count; end > maxBlocks || total > maxRead/blockSize {
			err = errForeign
		}
		e.spans = append(e.spans, s)
	}
	e.value = rest
	return e, err
}

// maxBlocks is more than any file has.
const maxBlocks = 1 << 47

func checksum(name string, sealed []byte) Sum {
	h := sha256.New()
	h.Write([]byte(name))
	h.Write(sealed[len(magic)+sha256.Size:])
	return Sum(h.Sum(nil))
}

var buffers = sync.Pool{New: func() any { return new([64 * blockSize]byte) }}

// content returns the sum of a file of that name from its bytes in e's spans.
func (e *entry) content(name string, f File) (Sum, error) {
	h := sha256.New()
	h.Write([]byte(name))
	buffer := buffers.Get().(*[64 * blockSize]byte)
	defer buffers.Put(buffer)
	for _, s := range e.spans {
		at, end := s.first*blockSize, min((s.first+s.count)*blockSize, f.Size)
		if at > end {
			return Sum{}, io.ErrUnexpectedEOF
		}
		writeNumbers(h, at, end)
		for at < end {
			b := buffer[:min(int64(len(buffer)), end-at)]
			if n, err := f.ReadAt(b, at); n < len(b) {
				return Sum{}, errors.Join(io.ErrUnexpectedEOF, err)
			}
			h.Write(b)
			at += int64(len(b))
		}
	}
	writeNumbers(h, f.Size)
	return Sum(h.Sum(nil)), nil
}

func writeNumbers(h hash.Hash, numbers ...int64) {
	var b [8]byte
	for _, n := range numbers {
		binary.LittleEndian.PutUint64(b[:], uint64(n))
		h.Write(b[:])
	}
}
