package replay

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/leak"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pprof"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

// evil is a name that moves a terminal's cursor, reorders text and begins lines.
const evil = "\x1b[2J\u202e\r\neviI\x00\xff;\"'=1"

// hostile are records of each type, each name evil.
func hostile() []record.Record {
	m := &snapshot.Mapping{Start: 9, Limit: 3, Path: evil, BuildID: evil}
	line := snapshot.Line{Function: evil, System: evil, File: evil, Line: -1, Reason: evil}
	native, python := record.NewPlace(1, 5, nil, nil), record.NewPlace(2, 0, &snapshot.Location{Lines: []snapshot.Line{line, line}}, nil)
	other := event.Process{PID: 7, Start: 9 * event.StartUnit}
	out := []record.Record{
		&record.Note{Text: evil},
		&record.Trace{Version: evil, CommandLine: evil, Target: evil, StackMode: evil, Driver: evil, Boot: boot, Start: start,
			All: true, NVML: true, Physical: true, Initial: true, MaxLive: 3, Incidents: 1 << 30, APIs: []string{evil, evil}},
		&record.Process{Process: proc, Target: true, Name: evil, Program: m},
		&record.Stack{ID: 1, Process: proc, Frames: []*record.Place{native, python, native}},
		&record.Stack{ID: 0, Process: proc, Frames: []*record.Place{native}},
	}
	device := record.Device{UUID: evil, Label: evil, Name: evil, Total: -1, Used: 1 << 62, MemoryKnown: true, Listed: true,
		Processes: []snapshot.GPUProcess{{PID: 7, Name: evil, Bytes: 1 << 40, Known: true}}}
	out = append(out, objects()...)
	for i := range uint64(6) {
		fails := alloc(time.Duration(i)*2*time.Second, 0)
		fails.Result = event.OutOfMemory
		out = append(out, alloc(time.Duration(i)*2*time.Second, 16*(i+1)), fails,
			&record.Reading{Begin: 1 << 63, Time: at(time.Duration(i) * 2 * time.Second), Devices: []record.Device{device, device},
				Uses: []record.Use{{Process: proc, Device: 1, Bytes: int64(i) << 40, Known: true}}, Ordinals: []record.Ordinal{{Process: proc, Device: 1}, {Process: other, Ordinal: -1}}},
			moment(time.Duration(i)*2*time.Second+time.Second))
	}
	return append(out,
		&event.Event{Op: event.OpOutOfMemory, Time: at(20 * time.Second), Proc: proc, TID: 9, Size: 1 << 63, Handle: 1 << 63, Part: 1 << 63},
		&event.Event{Op: event.OpFork, Time: at(20 * time.Second), Proc: proc, Child: other, Name: evil},
		&event.Event{Op: event.OpExec, Time: at(20 * time.Second), Proc: other, Name: evil},
		&record.Loss{Counters: []loss.Counter{{Name: evil, Help: evil, Value: 1 << 63}}, Notes: []string{evil}},
		&record.Name{Place: native, Location: &snapshot.Location{Address: 5, Mapping: m, Lines: []snapshot.Line{line}}, Final: true},
		&record.Sweep{}, &record.Sweep{Drop: true}, &record.Moment{Time: 1<<64 - 1, Slept: 1<<64 - 1}, &record.Reported{},
		&event.Event{Op: event.OpExit, Time: 3, Proc: proc, Name: evil},
		&record.Cut{Time: at(time.Hour)}, moment(time.Hour))
}

// objects are calls of the kernel driver that name themselves, each other and what
// there never was, and take more than there is.
func objects() (out []record.Record) {
	const client = 7<<32 | 7
	add := func(e event.Event) {
		e.Time, e.Proc, e.Stack, e.Outer = at(time.Duration(len(out))*time.Millisecond), proc, 1, uint16(len(out))
		out = append(out, &e)
	}
	add(event.Event{Op: event.OpClient, Handle: client, Addr: 3})
	add(event.Event{Op: event.OpGPU, Addr: 1 << 63, Part: 1<<64 - 1})
	add(event.Event{Op: event.OpObjectDevice, Handle: 7<<32 | 1, Part: client, Addr: 1 << 63})
	add(event.Event{Op: event.OpObject, Handle: 7<<32 | 2, Part: 7<<32 | 2})
	add(event.Event{Op: event.OpObjectInstance, Handle: 7<<32 | 3, Part: 7<<32 | 1, Addr: 1<<64 - 1})
	for i, kind := range []event.Kind{event.KindDriver, event.KindSystem, event.KindHost, event.KindNone, event.NumKinds} {
		add(event.Event{Op: event.OpObjectMemory, Kind: kind, Handle: 7<<32 | uint64(9+i), Part: 7<<32 | uint64(i), Size: 1 << (10 * i), Device: -9})
		add(event.Event{Op: event.OpObjectMemory, Kind: kind, Handle: 7<<32 | 9, Part: 1, Size: 1<<64 - 1, Result: int32(i)})
	}
	add(event.Event{Op: event.OpObjectShare, Handle: 8<<32 | 8, Part: 7<<32 | 1, Addr: 7<<32 | 9})
	add(event.Event{Op: event.OpObjectShare, Handle: 7<<32 | 9, Part: 7<<32 | 9, Addr: 7<<32 | 9})
	add(event.Event{Op: event.OpObjectFree, Handle: 7<<32 | 10})
	add(event.Event{Op: event.OpObjectFree, Handle: 0})
	add(event.Event{Op: event.OpDescriptorClose, Addr: 4})
	return out
}

// mended returns a recording whose checksums are right, where its blocks'
// lengths say.
func mended(data []byte) []byte {
	const header, blockHeader, maxPayload = 32, 56, 256 << 10
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	data = slices.Clone(data)
	if len(data) < header {
		return data
	}
	salt := binary.LittleEndian.Uint32(data[24:])
	binary.LittleEndian.PutUint32(data[28:], crc32.Checksum(data[:28], castagnoli))
	for b := data[header:]; len(b) >= blockHeader; {
		n := min(int(binary.LittleEndian.Uint32(b[12:])), maxPayload, len(b)-blockHeader)
		binary.LittleEndian.PutUint32(b[12:], uint32(n))
		binary.LittleEndian.PutUint32(b[8:], crc32.Checksum(b[blockHeader:blockHeader+n], castagnoli))
		binary.LittleEndian.PutUint32(b[4:], crc32.Update(salt, castagnoli, b[8:blockHeader]))
		b = b[blockHeader+n:]
	}
	return data
}

// show plays a recording and writes all that it shows in every format. What
// people read must be clean.
func show(t *testing.T, data []byte, opts Options) {
	t.Helper()
	detector := leak.New(leak.Options{Interval: time.Second})
	opts.Layout, opts.Remember = true, 1000
	opts.Moment = func(s *state.State) { detector.Observe(s.Time(), s.InUse) }
	incidents := 0
	opts.OutOfMemory = func(in *state.Incident) {
		if incidents++; incidents > 3 {
			return
		}
		var page bytes.Buffer
		o := in.OutOfMemory(state.Want{Driver: true})
		if err := export.OutOfMemory(&page, o); err != nil {
			t.Fatal(err)
		}
		clean(t, "out of memory", page.String())
	}
	r, err := record.NewReader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		return
	}
	played, err := PlayReader(r, opts)
	if err != nil {
		return
	}
	view := played.View(state.Want{Live: true, Driver: true, Layout: true})
	snap := view.Snapshot()
	if err := pprof.Write(&bytes.Buffer{}, snap); err != nil {
		t.Fatal(err)
	}
	for _, format := range export.Builtin() {
		var out bytes.Buffer
		// A year that JSON cannot write is an error.
		if err := format.Write(&out, snap, export.Options{Top: -1}); err != nil && format.Name != "json" {
			t.Fatalf("%s: %v", format.Name, err)
		}
		clean(t, format.Name, out.String())
	}
	var viewer bytes.Buffer
	if err := memoryviz.Pickle(&viewer, snap); err != nil {
		t.Fatal(err)
	}
	seen, err := viewertest.ReadPickle(viewer.Bytes())
	if err == nil {
		err = seen.Check(false)
	}
	if err != nil {
		t.Fatalf("memory viewer: %v", err)
	}
	var page bytes.Buffer
	if err := export.Summary(&page, snap, true); err != nil {
		t.Fatal(err)
	}
	clean(t, "summary", page.String())
	page.Reset()
	if err := export.Leaks(&page, detector.Report(snap, view.Sites), export.Options{Width: 80}); err != nil {
		t.Fatal(err)
	}
	clean(t, "leaks", page.String())
}

func clean(t *testing.T, what, text string) {
	t.Helper()
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		if got := render.Clean(line); got != line {
			t.Fatalf("%s: %.300q", what, line)
		}
	}
}

// Names of a recording are anybody's: no output passes them on as they are.
func TestHostileNames(t *testing.T) {
	data := bytesOf(t, recordtest.File(t, hostile()...))
	for after := time.Duration(-1); after < 15*time.Second; after += 500 * time.Millisecond {
		show(t, data, Options{At: after})
	}
	show(t, data, Options{At: End})
}

// No recording makes playing it, or writing what it shows, panic.
func FuzzPlay(f *testing.F) {
	withinMemory := recordtest.LimitMemory(f)
	data := bytesOf(f, recordtest.File(f, hostile()...))
	f.Add(data, int64(End))
	f.Add(data, int64(3*time.Second))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		mutated := slices.Clone(data)
		for range 1 + rng.IntN(8) {
			mutated[rng.IntN(len(mutated))] = byte(rng.Uint32())
		}
		f.Add(mutated, int64(End))
	}
	f.Fuzz(func(t *testing.T, data []byte, after int64) {
		for _, data := range [][]byte{data, mended(data)} {
			show(t, data, Options{At: time.Duration(after)})
		}
		withinMemory(t)
	})
}
