package record

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A memoryFile is a file in memory that can refuse to be written.
type memoryFile struct {
	mu    sync.Mutex
	data  []byte
	limit int64                   // bytes on the disk, 0 for no limit
	wrote func(b []byte, o int64) // called with the data after each write
	hold  chan struct{}           // each write waits for it
}

var errDiskFull = errors.New("no space left on device")

func (f *memoryFile) WriteAt(b []byte, o int64) (int, error) {
	if f.hold != nil {
		<-f.hold
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.limit > 0 && o+int64(len(b)) > f.limit {
		b, err = b[:max(0, f.limit-o)], errDiskFull
	}
	if need := int(o) + len(b); len(b) > 0 && need > len(f.data) {
		f.data = append(f.data, make([]byte, need-len(f.data))...)
	}
	copy(f.data[min(int(o), len(f.data)):], b)
	if f.wrote != nil {
		f.wrote(b, o)
	}
	return len(b), err
}

func (f *memoryFile) Truncate(size int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = f.data[:min(size, int64(len(f.data)))]
	return nil
}

func (f *memoryFile) Close() error { return nil }

func (f *memoryFile) setLimit(n int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.limit = n
}

func (f *memoryFile) bytes() []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.data)
}

func newTestWriter(t testing.TB, f file, opts WriterOptions, l layout, blockSize int) *Writer {
	t.Helper()
	w, err := newWriter(f, opts, l, blockSize, queueDepth)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// flush hands over what was recorded and waits until it was tried to write it.
func (w *Writer) flush() {
	w.mu.Lock()
	w.flushBlock()
	w.mu.Unlock()
	for w.queue.unwritten() > 0 {
		time.Sleep(time.Millisecond)
	}
}

// encoded returns a closed recording of records.
func encoded(t testing.TB, blockSize int, records ...Record) []byte {
	t.Helper()
	f := &memoryFile{}
	w, err := newWriter(f, WriterOptions{}, layout{}, blockSize, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		w.Append(r)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.Loss() {
		if c.Value != 0 && c.Name != "recorded_texts_cut" {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
	return f.data
}

func newTestReader(t testing.TB, data []byte) *Reader {
	t.Helper()
	r, err := NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// readAll returns all records, with events of their own.
func readAll(t testing.TB, r *Reader) []Record {
	t.Helper()
	var out []Record
	for {
		rec, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if ev, ok := rec.(*event.Event); ok {
			own := *ev
			rec = &own
		}
		out = append(out, rec)
	}
}

// comparePlaces has cmp compare what a Place says of itself.
var comparePlaces = cmp.Transformer("place", func(p *Place) any {
	if p == nil {
		return nil
	}
	return struct {
		ID, Address uint64
		Naming      uint32
		Location    *snapshot.Location
	}{p.ID, p.Address, p.naming.Load(), p.location.Load()}
})

func sound(t testing.TB, r *Reader) {
	t.Helper()
	for _, c := range r.Loss() {
		if c.Value != 0 {
			t.Errorf("%s = %d", c.Name, c.Value)
		}
	}
	if r.Truncated() || r.uncertain {
		t.Errorf("truncated %v, uncertain %v", r.Truncated(), r.uncertain)
	}
}

// encode writes a record to an empty payload, and returns the Fields: their buf has the entry, and
// its bad says whether a Writer would refuse the record.
func encode(r Record) Fields {
	var c Fields
	if ev, ok := r.(*event.Event); ok {
		c.visitEvent(ev)
	} else {
		c.record(r)
	}
	return c
}

// A maker makes up records of all types, with extreme values.
type maker struct {
	*rand.Rand
	nextPlace uint64
	places    []*Place
	mappings  []*snapshot.Mapping
	locations []*snapshot.Location
}

func newMaker(seed uint64) *maker { return &maker{Rand: rand.New(rand.NewPCG(seed, 1))} }

func (m *maker) some() bool { return m.IntN(2) == 0 }

// u64 is small, large or anything.
func (m *maker) u64() uint64 {
	switch m.IntN(8) {
	case 0:
		return 0
	case 1:
		return math.MaxUint64
	case 2:
		return 1 << m.IntN(64)
	case 3:
		return m.Uint64()
	case 4:
		return m.Uint64N(1<<40) * 512
	}
	return m.Uint64N(300)
}

func (m *maker) i64() int64 {
	if m.IntN(8) == 0 {
		return math.MinInt64
	}
	return int64(m.u64())
}

func (m *maker) text() string {
	switch m.IntN(12) {
	case 0:
		return ""
	case 1:
		b := make([]byte, m.IntN(200))
		for i := range b {
			b[i] = byte(m.Uint32())
		}
		return string(b)
	}
	return fmt.Sprint("text ", m.IntN(50))
}

func (m *maker) texts() []string {
	var out []string
	for range m.IntN(4) {
		out = append(out, m.text())
	}
	return out
}

func (m *maker) wall() time.Time {
	if m.IntN(4) == 0 {
		return time.Time{}
	}
	return time.Unix(m.Int64N(1<<40)-1<<39, m.Int64N(1e9)).UTC()
}

func (m *maker) process() event.Process {
	return event.Process{PID: uint32(m.u64()), Start: m.u64()}
}

func (m *maker) mapping() *snapshot.Mapping {
	if m.IntN(4) == 0 {
		return nil
	}
	if len(m.mappings) > 0 && m.some() {
		return m.mappings[m.IntN(len(m.mappings))]
	}
	p := &snapshot.Mapping{Start: m.u64(), Limit: m.u64(), Offset: m.u64(), Path: fmt.Sprint("/lib/", len(m.mappings)), BuildID: m.text(), HasLines: m.some()}
	m.mappings = append(m.mappings, p)
	return p
}

func (m *maker) location() *snapshot.Location {
	if len(m.locations) > 0 && m.IntN(4) == 0 {
		return m.locations[m.IntN(len(m.locations))]
	}
	l := &snapshot.Location{Address: m.u64(), Mapping: m.mapping()}
	for range 1 + m.IntN(3) {
		l.Lines = append(l.Lines, snapshot.Line{Function: m.text(), System: m.text(), File: m.text(), Line: int(uint32(m.i64()) >> 1), Reason: m.text()})
	}
	m.locations = append(m.locations, l)
	return l
}

func (m *maker) place() *Place {
	if len(m.places) > 0 && m.IntN(4) != 0 {
		return m.places[m.IntN(len(m.places))]
	}
	m.nextPlace += 1 + m.Uint64N(3)
	p := NewPlace(m.nextPlace, m.u64(), nil, nil)
	if m.some() {
		(&Name{p, m.location(), m.some()}).Apply()
	}
	m.places = append(m.places, p)
	return p
}

func (m *maker) event() *event.Event {
	ev := &event.Event{
		Time: m.u64(), Proc: m.process(), TID: uint32(m.u64()), Op: event.Op(m.u64()),
		Kind: event.Kind(m.IntN(int(event.KindSystem + 1))), Space: event.Space(m.IntN(int(event.SpaceExternal + 1))), // as the golden file has them
		API: uint16(m.u64()), Outer: uint16(m.u64()), Result: int32(m.i64()), Device: int32(m.i64()),
		Addr: m.u64(), Size: m.u64(), Handle: m.u64(), Part: m.u64(), Stream: m.u64(), Ctx: m.u64(), Stack: m.u64(),
	}
	if m.IntN(4) == 0 {
		ev.Child, ev.Name = m.process(), m.text()
	}
	return ev
}

func (m *maker) reading() *Reading {
	r := &Reading{Begin: m.u64(), Time: m.u64()}
	for range m.IntN(4) {
		d := Device{
			UUID: m.text(), Label: m.text(), Name: m.text(), GPU: uint32(m.u64()), GPUKnown: m.some(), Instance: int32(m.i64()),
			Total: m.i64(), Used: m.i64(), Free: m.i64(), MemoryKnown: m.some(), Listed: m.some(),
		}
		for range m.IntN(3) {
			d.Processes = append(d.Processes, snapshot.GPUProcess{PID: int(m.i64()), Name: m.text(), Bytes: m.i64(), Known: m.some()})
		}
		r.Devices = append(r.Devices, d)
	}
	for range m.IntN(4) * len(r.Devices) {
		r.Uses = append(r.Uses, Use{m.process(), m.IntN(len(r.Devices)), m.i64(), m.some(), m.some()})
		r.Ordinals = append(r.Ordinals, Ordinal{m.process(), int32(m.i64()), m.IntN(len(r.Devices))})
	}
	return r
}

func (m *maker) record() Record {
	switch m.IntN(22) {
	case 0:
		return &Trace{
			Version: m.text(), CommandLine: m.text(), Target: m.text(), StackMode: m.text(), Driver: m.text(),
			Start: m.wall(), Boot: m.wall(), All: m.some(), NVML: m.some(), Physical: m.some(), Initial: m.some(), MaxLive: int(m.i64()), Incidents: int(m.i64()), APIs: m.texts(),
		}
	case 1, 2, 3:
		s := &Stack{ID: m.u64(), Process: m.process()}
		for range m.IntN(6) {
			s.Frames = append(s.Frames, m.place())
			s.Modules = append(s.Modules, s.ID>>len(s.Frames))
		}
		return s
	case 4, 5:
		return &Name{m.place(), m.location(), m.some()}
	case 6:
		r := &Process{Process: m.process(), Target: m.some(), Name: m.text(), FromStart: m.some(), Program: m.mapping()}
		if r.FromStart {
			r.User, r.Parent, r.ParentEnd = UserOf(r.Process.PID), r.Process.PID, r.Process.Start
			for i, field := range r.Who.Fields() {
				*field = r.Name[min(i, len(r.Name)):]
			}
		}
		return r
	case 7:
		return m.reading()
	case 8:
		l := &Loss{Notes: m.texts()}
		for range m.IntN(3) {
			l.Counters = append(l.Counters, loss.Counter{Name: m.text(), Help: m.text(), Value: m.u64()})
		}
		return l
	case 9:
		return &Note{m.text()}
	case 10:
		return &Moment{m.u64(), m.u64(), m.some()}
	case 11:
		return &Sweep{m.some()}
	case 12:
		return &Reported{}
	case 13:
		return &Cut{m.u64()}
	}
	return m.event()
}

func (m *maker) records(n int) []Record {
	out := make([]Record, n)
	for i := range out {
		out[i] = m.record()
	}
	return out
}

// objects returns each operation of the kernel driver, twice: what came up
// before is written in another way.
func objects() (out []Record) {
	const client, other = 0xc1d0001a << 32, 0xc1d00020 << 32
	for i, ev := range []event.Event{
		{Op: event.OpClient, Handle: client, Addr: 7},
		{Op: event.OpGPU, Part: 0x1a00, Addr: 3},
		{Op: event.OpObjectDevice, Handle: client | 1, Part: client, Addr: 3},
		{Op: event.OpObject, Handle: client | 2, Part: client | 1},
		{Op: event.OpObjectInstance, Handle: client | 3, Part: client | 2, Addr: 9},
		{Op: event.OpObjectMemory, Kind: event.KindDriver, Handle: client | 0x5c000001, Part: client | 1, Size: 434_110_464},
		{Op: event.OpObjectMemory, Kind: event.KindSystem, Handle: client | 0x5c000002, Part: client | 1, Size: 4096, Result: 0x51},
		{Op: event.OpObjectShare, Handle: client | 0x5c000003, Part: client | 1, Addr: other | 0x5c000001},
		{Op: event.OpObjectFree, Handle: client | 0x5c000001},
		{Op: event.OpDescriptorClose, Addr: 7},
	} {
		ev.Time, ev.Proc, ev.TID = 1_000_000+uint64(i), event.Process{PID: 4711, Start: event.StartUnit}, 4712
		ev.API, ev.Outer, ev.Device, ev.Stack = 200, uint16(3+i), event.NoDevice, 0x9e3779b97f4a7c15
		out = append(out, &ev)
	}
	return append(out, out...)
}

// tensorEvents returns each operation of the tensor layer.
func tensorEvents() (out []Record) {
	for i, ev := range []event.Event{
		{Op: event.OpTensorAlloc, Kind: event.KindTensor, Addr: 1 << 40, Size: 512, Handle: 512, Part: 2 << 20, Stack: 9},
		{Op: event.OpTensorFree, Addr: 1 << 40, Size: 512, Part: 2 << 20},
		{Op: event.OpTensorFree, Addr: 1 << 41, Handle: event.NoTotal, Part: event.NoTotal},
		{Op: event.OpPrivatePoolBegin, Size: 1, Handle: 3, Part: 4},
		{Op: event.OpPrivatePoolMemory, Addr: 1 << 40, Size: 2 << 20, Handle: 3, Part: 4},
		{Op: event.OpPrivatePoolEnd, Handle: 3, Part: 4},
	} {
		ev.Time, ev.Proc, ev.TID, ev.API = 2_000_000+uint64(i), event.Process{PID: 4711, Start: event.StartUnit}, 4712, 3
		out = append(out, &ev)
	}
	return out
}

// small returns records that fit in blocks of 1 KiB.
func (m *maker) small(n int) []Record {
	return slices.DeleteFunc(m.records(n), func(r Record) bool {
		return len(encode(r).buf) > 500
	})
}

// fresh makes an empty file.
func fresh(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}
