package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
)

// A Format is of files that are read as recordings, and were made by other programs.
type Format struct {
	// Is reports whether a file that begins with head may be of the format.
	Is func(head []byte) bool
	// Records yields the records of a file, which is at path and begins with head. Its error wraps
	// ErrNotRecording where the file is of another sort.
	Records func(r *io.SectionReader, head []byte, path string, yield func(Record)) error
}

// formats are those that were registered, and what was read of their files. A command opens a file
// several times.
var formats struct {
	sync.Mutex
	all  []Format
	read []converted
}

// A converted is a recording of a file of a Format.
type converted struct {
	of   fs.FileInfo
	file *memory
}

// Register makes Open read files of a format, too. It is called before Open.
func Register(f Format) { formats.all = append(formats.all, f) }

// OpenFile is Open of a file that is open, and which the Reader does not close.
func OpenFile(f *os.File, info fs.FileInfo) (*Reader, error) {
	head := make([]byte, fileHeaderSize)
	n, err := readAt(f, head, 0)
	if err != nil {
		return nil, err
	}
	head = head[:n]
	for _, format := range formats.all {
		if IsRecording(head) || !format.Is(head) {
			continue
		}
		m, err := convert(f, info, head, format)
		if errors.Is(err, ErrNotRecording) {
			break
		}
		if err != nil {
			return nil, err
		}
		r, err := NewReader(bytes.NewReader(m.bytes), int64(len(m.bytes)))
		if r != nil {
			r.foreign = true
		}
		return r, err
	}
	return NewReader(f, info.Size())
}

// convert returns the recording of a file of a format.
func convert(f *os.File, info fs.FileInfo, head []byte, format Format) (*memory, error) {
	formats.Lock()
	defer formats.Unlock()
	for _, c := range formats.read {
		if os.SameFile(c.of, info) && c.of.Size() == info.Size() && c.of.ModTime().Equal(info.ModTime()) {
			return c.file, nil
		}
	}
	m := &memory{}
	w, err := newWriter(m, WriterOptions{Unbounded: true}, layout{}, maxPayload, queueDepth)
	if err != nil {
		return nil, err
	}
	err = format.Records(io.NewSectionReader(f, 0, info.Size()), head, f.Name(), w.Append)
	if err = errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	for _, c := range w.Loss() {
		if c.Value > 0 {
			return nil, fmt.Errorf("%d %s", c.Value, c.Help)
		}
	}
	formats.read = append(formats.read, converted{info, m})
	return m, nil
}

// A memory is a file of a sink in memory.
type memory struct{ bytes []byte }

// WriteAt writes at the end, or over what was written.
func (m *memory) WriteAt(b []byte, at int64) (int, error) {
	if more := at + int64(len(b)) - int64(len(m.bytes)); more > 0 {
		m.bytes = append(m.bytes, make([]byte, more)...)
	}
	return copy(m.bytes[at:], b), nil
}

// Truncate drops what lies beyond size.
func (m *memory) Truncate(size int64) error {
	m.bytes = m.bytes[:min(size, int64(len(m.bytes)))]
	return nil
}

// Close does nothing.
func (m *memory) Close() error { return nil }
