// Package filememo remembers what was derived from the content of files, across
// runs of the tracer.
//
// The author of a file chooses its name, build id, times and bytes. So none of these can
// be the key under which the file of another process gets a value. The memo is verified
// instead, like the memo of stacks: while a value is derived, the memo records every byte
// that the derivation reads. A later file gets the value if it has the same bytes at the
// same places. A derivation is a function of what it reads, so it would give the same value
// there. An entry from a hostile file is therefore correct for every file that gets it.
//
// The name of an entry is a hash of the file's owner, size, first and last bytes. Files
// with one name that differ elsewhere replace each other's entries, which costs one
// derivation each. Only files of one owner can have the same name.
package filememo

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// maxRead bounds the bytes of one file that a derivation reads.
const maxRead = 128 << 20

// ErrTooLarge is the error of reading more of a file than a derivation may.
var ErrTooLarge = errors.New("too much of the file to be read")

// A Sum identifies what a value was derived from: the file's name in the memo, and all
// bytes that the derivation read, and where. It is SHA-256.
type Sum [sha256.Size]byte

// A File is what a value is derived from.
type File struct {
	io.ReaderAt
	Size  int64
	Owner uint32 // user id
}

// A Memo remembers values of one kind. It is safe for concurrent use.
type Memo struct {
	kind  string
	store store
	loss  *loss.Set
}

// A store has entries by name, up to a limit of bytes. It drops those that were not used
// for longest.
type store interface {
	// get returns an entry, nil if there is none.
	get(name string) ([]byte, error)
	put(name string, entry []byte) error
}

// Loss, by index.
var (
	causes     loss.Causes
	lossBad    = causes.Add("unwind_cache_replaced", "files of the cache of unwind tables that were damaged or not the tracer's own, and were replaced")
	lossFailed = causes.Add("unwind_cache_failed", "files of the cache of unwind tables that could not be read or written")
)

// InMemory returns a memo that ends with the process. kind names the sort of value, and the
// version of the derivation. limit is in bytes.
func InMemory(kind string, limit int64) *Memo {
	return &Memo{kind, newMemory(limit), loss.New(causes)}
}

// Open returns a memo in a directory, which it makes if need be, with up to limit
// bytes. The directory must belong to the effective user, and be closed to others: the
// error says what is wrong with it. Several processes may use one directory.
func Open(dir, kind string, limit int64) (*Memo, error) {
	m := &Memo{kind: kind, loss: loss.New(causes)}
	d, err := openDirectory(dir, limit, func() { m.loss.Add(lossFailed, 1) })
	if err != nil {
		return nil, fmt.Errorf("open the cache of unwind tables: %w", err)
	}
	m.store = d
	return m, nil
}

// Close returns when all entries have been written. Do not use the memo after that.
func (m *Memo) Close() error {
	if c, ok := m.store.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Loss returns the counters of entries that were invalid, and of those that could not be
// stored.
func (m *Memo) Loss() []loss.Counter { return m.loss.Counters() }

// Derive returns the value that derive makes of the file. It remembers values, but not
// errors. derive must be a function of what it reads, and of nothing else.
func (m *Memo) Derive(f File, derive func(io.ReaderAt) ([]byte, error)) (value []byte, content Sum, err error) {
	name, err := m.name(f)
	if err != nil {
		return nil, Sum{}, err
	}
	if value, content, ok := m.remembered(name, f); ok {
		return value, content, nil
	}
	r := newRecorder(f)
	if value, err = derive(r); err == nil {
		err = r.err // derive may have ignored it
	}
	if err != nil {
		return nil, Sum{}, err
	}
	sealed, content, err := seal(name, r, value)
	if err != nil {
		return nil, Sum{}, err
	}
	if err := m.store.put(name, sealed); err != nil {
		m.loss.Add(lossFailed, 1)
	}
	return value, content, nil
}

func (m *Memo) remembered(name string, f File) ([]byte, Sum, bool) {
	sealed, err := m.store.get(name)
	if sealed == nil && err == nil {
		return nil, Sum{}, false
	}
	var e entry
	if err == nil {
		e, err = unseal(name, sealed)
	}
	if err != nil {
		if errors.Is(err, errForeign) {
			m.loss.Add(lossBad, 1)
		} else {
			m.loss.Add(lossFailed, 1)
		}
		return nil, Sum{}, false
	}
	content, err := e.content(name, f)
	return e.value, e.sum, err == nil && content == e.sum
}

// ends is how many bytes of each end of a file are part of the entry's name. The first ones
// contain an ELF file's build id.
const ends = 4 << 10

// name returns the name of a file's entry.
func (m *Memo) name(f File) (string, error) {
	h := sha256.New()
	var number [8]byte
	for _, n := range []uint64{uint64(len(m.kind)), uint64(f.Owner), uint64(f.Size)} {
		binary.LittleEndian.PutUint64(number[:], n)
		h.Write(number[:])
	}
	h.Write([]byte(m.kind))
	end := make([]byte, min(ends, f.Size))
	for _, at := range []int64{0, max(0, f.Size-ends)} {
		n, err := f.ReadAt(end, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return "", fmt.Errorf("read an end of the file: %w", err)
		}
		h.Write(end[:n])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
