package record

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// blocksOf returns where the blocks of an undamaged file begin, and its end.
func blocksOf(t testing.TB, data []byte) []int {
	t.Helper()
	var starts []int
	offset := fileHeaderSize
	for offset < len(data) {
		starts = append(starts, offset)
		h, ok := parseBlock(data[offset:], 0)
		if !ok {
			t.Fatalf("no block at %d", offset)
		}
		offset += blockHeaderSize + int(h.Length)
	}
	return append(starts, offset)
}

// recordsBefore returns how many records the blocks that end at or before an
// offset have.
func recordsBefore(data []byte, starts []int, end int) int {
	n := 0
	for i, s := range starts[:len(starts)-1] {
		if starts[i+1] <= end {
			h, _ := parseBlock(data[s:], 0)
			n += int(h.Records)
		}
	}
	return n
}

func TestTruncationKeepsWholeBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	all := newMaker(7).small(100)
	data := encoded(t, 1<<10, all...)
	starts := blocksOf(t, data)
	if len(starts) < 5 {
		t.Fatalf("only %d blocks", len(starts)-1)
	}
	for end := range data {
		r, err := NewReader(bytes.NewReader(data[:end]), int64(end))
		if end < fileHeaderSize {
			if !errors.Is(err, ErrCutShort) && !errors.Is(err, ErrNotRecording) {
				t.Fatalf("%d bytes: %v", end, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%d bytes: %v", end, err)
		}
		got := readAll(t, r)
		if want := recordsBefore(data, starts, end); len(got) != want {
			t.Fatalf("%d bytes: %d records, want %d", end, len(got), want)
		}
		if !r.Truncated() || r.uncertain || r.Loss()[readCutShort].Value != 1 || len(r.Notes()) != 1 {
			t.Fatalf("%d bytes: truncated %v, uncertain %v, notes %q", end, r.Truncated(), r.uncertain, r.Notes())
		}
	}
}

// Each byte of a block, when it is wrong, costs that block's records at most.
func TestDamageCostsOneBlock(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	all := newMaker(8).small(100)
	data := encoded(t, 1<<10, all...)
	starts := blocksOf(t, data)
	for i, start := range starts[:len(starts)-1] {
		h, _ := parseBlock(data[start:], 0)
		before := recordsBefore(data, starts, start)
		want := len(all) - int(h.Records)
		for at := start; at < starts[i+1]; at++ {
			bad := slices.Clone(data)
			bad[at] ^= 0x40
			r := newTestReader(t, bad)
			got := readAll(t, r)
			if len(got) != want {
				t.Fatalf("byte %d of block %d: %d records, want %d", at-start, i, len(got), want)
			}
			if i < len(starts)-2 {
				if !r.uncertain || r.Loss()[readDamaged].Value != 1 || len(r.Notes()) != 1 {
					t.Fatalf("byte %d of block %d: uncertain %v, %v, %q", at-start, i, r.uncertain, r.Loss(), r.Notes())
				}
			} else if !r.Truncated() {
				t.Fatalf("byte %d of the last block: the recording looks whole", at-start)
			}
			if before > 0 && at == start {
				if d := cmp.Diff(all[:before], got[:before], comparePlaces); d != "" {
					t.Fatal(d)
				}
			}
		}
	}
}

// What lies between blocks is passed over, however it looks.
func TestGarbageBetweenBlocks(t *testing.T) {
	all := newMaker(9).records(300)
	data := encoded(t, 4<<10, all...)
	starts := blocksOf(t, data)
	for _, n := range []int{1, 55, 500, 70_000} {
		garbage := bytes.Repeat([]byte(blockMagic), n/4+1)[:n]
		bad := slices.Concat(data[:starts[2]], garbage, data[starts[2]:])
		r := newTestReader(t, bad)
		if got := readAll(t, r); len(got) != len(all) {
			t.Errorf("%d bytes of garbage: %d records, want %d", n, len(got), len(all))
		}
		if r.Loss()[readDamaged].Value != 1 || r.uncertain {
			t.Errorf("%d bytes of garbage: %v, uncertain %v", n, r.Loss(), r.uncertain)
		}
	}
}

// A text that looks like a block is not taken for one, also where the blocks
// have to be looked for: whoever is traced chooses texts, but knows no salt.
func TestTextIsNoBlock(t *testing.T) {
	forged := encoded(t, 1<<10, &Note{"forged"})[fileHeaderSize:]
	f := &memoryFile{}
	w := newTestWriter(t, f, WriterOptions{}, layout{salt: 1}, 1<<10)
	w.Append(&Note{string(forged)})
	w.flush()
	w.Append(&Note{"after"})
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f.data[fileHeaderSize] ^= 1
	r := newTestReader(t, f.data)
	if d := cmp.Diff([]Record{&Note{"after"}}, readAll(t, r)); d != "" {
		t.Error(d)
	}
}

// A stack whose places were lost has frames nonetheless.
func TestMissingPlaces(t *testing.T) {
	p := NewPlace(3, 0x1234, nil, nil)
	data := encoded(t, 4<<10, &Stack{ID: 1, Frames: []*Place{p}}, &Note{string(make([]byte, 3000))}, &Note{string(make([]byte, 3000))}, &Stack{ID: 2, Frames: []*Place{p}})
	starts := blocksOf(t, data)
	data[starts[0]+blockHeaderSize] ^= 1 // the places
	r := newTestReader(t, data)
	all := readAll(t, r)
	s := all[len(all)-1].(*Stack)
	if len(s.Frames) != 1 || s.Frames[0].Location() == nil || r.Loss()[readPlaces].Value != 1 {
		t.Errorf("stack %v, %v", s, r.Loss())
	}
}

func TestWhatIsNoRecording(t *testing.T) {
	good := encoded(t, 4<<10, &Note{"x"})
	version := slices.Clone(good)
	version[8]++
	damaged := slices.Clone(good)
	damaged[13]++
	for _, c := range []struct {
		name string
		data []byte
		want error
	}{
		{"empty", nil, ErrNotRecording},
		{"gzip", []byte("\x1f\x8b\x08\x00aaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), ErrNotRecording},
		{"version", version, ErrVersion},
		{"version alone", version[:12], ErrVersion},
		{"damaged", damaged, ErrMalformed},
	} {
		if _, err := NewReader(bytes.NewReader(c.data), int64(len(c.data))); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if !IsRecording(good[:8]) || !IsRecording(version) || IsRecording(good[:7]) || IsRecording([]byte("\x1f\x8b\x08\x00aaaa")) {
		t.Error("IsRecording is wrong")
	}

	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, dir} {
		if _, err := Open(path); !errors.Is(err, userfile.ErrNotRegular) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := Open(filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
}

type failingReader struct {
	io.ReaderAt
	after int64
}

func (f failingReader) ReadAt(b []byte, o int64) (int, error) {
	if o >= f.after {
		return 0, syscall.EIO
	}
	return f.ReaderAt.ReadAt(b, o)
}

func TestReadErrorIsReturned(t *testing.T) {
	data := encoded(t, 4<<10, newMaker(2).records(300)...)
	r, err := NewReader(failingReader{bytes.NewReader(data), int64(len(data) / 2)}, int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for err == nil {
		n++
		_, err = r.Next()
	}
	if !errors.Is(err, syscall.EIO) || n < 20 {
		t.Errorf("%v after %d records", err, n)
	}
	if _, again := r.Next(); !errors.Is(again, syscall.EIO) {
		t.Error(again)
	}
}

// A damaged recording shows no line that no file has, and what it says of others stays.
func TestImpossibleLines(t *testing.T) {
	for line, want := range map[int]int{0: 0, 1: 1, math.MaxInt32: math.MaxInt32, -1: 0, math.MinInt: 0, math.MaxInt32 + 1: 0} {
		given := &snapshot.Location{Lines: []snapshot.Line{{Function: "f", Line: line}, {Function: "g", Line: 7}}}
		place := NewPlace(1, 0, nil, nil)
		all := readAll(t, newTestReader(t, encoded(t, 4<<10, &Stack{ID: 1, Frames: []*Place{place}}, &Name{place, given, true}, &Stack{ID: 2, Frames: []*Place{NewPlace(2, 0, given, nil)}})))
		for _, got := range [][]snapshot.Line{all[1].(*Name).Location.Lines, all[2].(*Stack).Frames[0].Location().Lines} {
			if got[0].Line != want || got[1].Line != 7 {
				t.Errorf("line %d: %+v, want %d", line, got, want)
			}
		}
	}
}
