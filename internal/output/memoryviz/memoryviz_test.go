package memoryviz

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/pickletest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

const base = 0x7f0000000000

var start = time.UnixMicro(1_700_000_000_000_000).UTC()

// training is a process with a segment of PyTorch's, one of NCCL's, and one that its
// tensors alone tell of.
func training() *snapshot.Snapshot {
	frame := func(name, file string, line int) *snapshot.Location {
		return &snapshot.Location{Lines: []snapshot.Line{{Function: name, File: file, Line: line}}}
	}
	library := &snapshot.Location{Address: 0x1234, Mapping: &snapshot.Mapping{Path: "/usr/lib/libnccl.so.2"}, Lines: []snapshot.Line{{Function: "inlined", File: "a.cc", Line: 3}, {Function: "ncclCommInitRank"}}}
	module := frame("<module>", "/home/me/train.py", 12)
	steps := []snapshot.Change{
		{Action: snapshot.SegmentCame, Address: base, Size: 2 << 20, Source: 0, Pool: true},
		{Action: snapshot.SegmentCame, Address: base + 64<<20, Size: 4 << 20, Source: 2},
		{Action: snapshot.BlockCame, Address: base, Size: 512, Source: 1},
		{Action: snapshot.BlockCame, Address: base + 1024, Size: 512, Source: 1},
		{Action: snapshot.BlockEnded, Address: base, Size: 512, Source: -1},
		{Action: snapshot.AllocationFailed, Size: 1 << 40, Source: 1, Free: 123 << 20, FreeKnown: true},
		{Action: snapshot.BlockCame, Address: base + 2048, Size: 512, Source: 1},
		{Action: snapshot.SegmentCame, Address: base + 128<<20, Size: 1 << 20, Source: 2},
		{Action: snapshot.SegmentEnded, Address: base + 128<<20, Size: 1 << 20, Source: -1},
		{Action: snapshot.BlockEnded, Address: base - 8<<20, Size: 512, Source: -1}, // of a segment from before
	}
	layout := &snapshot.Layout{
		Places: []snapshot.Place{{PID: 7, Process: "train", Device: 0, GPU: "3"}},
		Sources: []snapshot.Source{
			{Stack: []*snapshot.Location{frame("cuMemAlloc_v2", "", 0), module}, Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "3", Owner: "pytorch", Process: "train", PID: 7}},
			{Stack: []*snapshot.Location{frame("forward", "/home/me/net.py", 40), module}, Labels: snapshot.Labels{Kind: "tensor", GPU: "3", Owner: "pytorch", Operator: "aten::empty", Category: "activation", Process: "train", PID: 7}},
			{Stack: []*snapshot.Location{library, module}, Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "3", Owner: "nccl", Process: "train", PID: 7}},
		},
		Segments: []snapshot.Segment{
			{Address: base - 4<<20, Size: 512, Source: -1, Pool: true, Blocks: []snapshot.Block{{Address: base - 4<<20, Size: 512, Source: 1}}},
			{Address: base, Size: 2 << 20, Source: 0, Pool: true, Small: true, Blocks: []snapshot.Block{{Address: base + 1024, Size: 512, Source: 1}, {Address: base + 2048, Size: 512, Source: 1}}},
			{Address: base + 64<<20, Size: 4 << 20, Source: 2, Blocks: []snapshot.Block{{Address: base + 64<<20, Size: 4 << 20, Source: 2}}},
		},
		Changes: len(steps), Dropped: 3,
		Change: func(i int) snapshot.Change {
			s := steps[i]
			s.Time = start.Add(time.Duration(i) * time.Millisecond)
			return s
		},
	}
	return &snapshot.Snapshot{
		Meta:      snapshot.Meta{Version: "0.1.0", CommandLine: "gpumemtrace", Target: "pid 7 (train)", Driver: "580.159.04", Start: start, Duration: time.Second},
		Processes: []snapshot.Process{{PID: 7, Name: "train", Inuse: 7 << 20, Physical: 600 << 20}},
		Loss:      []loss.Counter{{Name: "events_lost", Value: 2}, {Name: "nothing"}},
		Notes:     []string{"something"},
		Layout:    layout,
	}
}

func read(t *testing.T, s *snapshot.Snapshot) (*viewertest.Snapshot, []byte) {
	t.Helper()
	var b bytes.Buffer
	if err := Pickle(&b, s); err != nil {
		t.Fatal(err)
	}
	seen, err := viewertest.ReadPickle(b.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if err := seen.Check(false); err != nil {
		t.Error(err)
	}
	return seen, b.Bytes()
}

func TestGolden(t *testing.T) {
	_, pickled := read(t, training())
	snapshottest.Golden(t, "training.pickle", pickled)
}

// Stacks and frames that are the same are written once, and read as one.
func TestShared(t *testing.T) {
	_, b := read(t, training())
	for _, name := range []string{"/home/me/train.py", "forward", "segment_alloc", "aten::empty"} {
		if n := bytes.Count(b, []byte(name)); n != 1 {
			t.Errorf("%q is written %d times", name, n)
		}
	}
	one, many := training(), training()
	step := one.Layout.Change
	many.Layout.Changes = 1000
	many.Layout.Change = func(int) snapshot.Change { return step(6) }
	one.Layout.Changes, one.Layout.Change = 1, many.Layout.Change
	_, small := read(t, one)
	_, large := read(t, many)
	if each := (len(large) - len(small)) / 999; each > 80 {
		t.Errorf("an entry takes %d bytes", each)
	}
}

// Names are a program's choice: what is written is text that does not act.
func TestHostileNames(t *testing.T) {
	for _, name := range []string{
		"\x1b[31mred\x00\x07", "\xff\xfe\xed\xa0\x80", strings.Repeat("☃\x80", 10_000), "\u202egnp.exe", "</script><script>alert(1)</script>", "\"\\\n\r\t", "",
	} {
		s := training()
		s.Meta.Target, s.Meta.CommandLine, s.Notes = name, name, []string{name}
		s.Layout.Places[0].Process, s.Layout.Places[0].GPU = name, name
		for i := range s.Layout.Sources {
			x := &s.Layout.Sources[i]
			x.Owner, x.Operator, x.Module, x.Process = name, name, name, name
			x.Stack = append(x.Stack, &snapshot.Location{Mapping: &snapshot.Mapping{Path: name}, Lines: []snapshot.Line{{Function: name}, {Function: name, File: name, Line: -1}}})
		}
		seen, b := read(t, s)
		for _, bad := range []string{"\x1b", "\u202e"} {
			if bytes.Contains(b, []byte(bad)) {
				t.Errorf("%.20q is passed on", name)
			}
		}
		frames := seen.Segments[0].Blocks[0].Frames
		if last := frames[len(frames)-1]; len(frames) != 4 || last.Line != -1 || render.Clean(last.Name) != last.Name {
			t.Errorf("%.20q: the last frame is %.100q", name, last.Name)
		}
	}
}

// What the viewer cannot count to is left out, and told.
func TestHighAddresses(t *testing.T) {
	s := training()
	const high = 1 << 62
	step := s.Layout.Change
	s.Layout.Change = func(i int) snapshot.Change {
		x := step(i)
		if x.Action == snapshot.SegmentCame && x.Source == 2 {
			x.Address = high
		}
		return x
	}
	last := &s.Layout.Segments[2]
	last.Address, last.Blocks[0].Address = high, high
	seen, _ := read(t, s)
	if len(seen.Segments) != 2 {
		t.Errorf("%d segments", len(seen.Segments))
	}
	if !strings.Contains(strings.Join(seen.About.Notes, "\n"), "4.00 MiB lie at addresses from 2^53 on") {
		t.Errorf("nobody is told: %q", seen.About.Notes)
	}
}

// The devices of several processes have numbers of their own.
func TestDevices(t *testing.T) {
	for _, test := range []struct {
		places []snapshot.Place
		want   []int
		traces int
	}{
		{nil, nil, 1}, // the viewer wants one
		{[]snapshot.Place{{PID: 1, Device: 0}, {PID: 1, Device: 3}}, []int{0, 3}, 4},
		{[]snapshot.Place{{PID: 1, Device: 0}, {PID: 2, Device: 0}}, []int{0, 1}, 2},
		{[]snapshot.Place{{PID: 1, Device: 2}, {PID: 1, Device: -1}}, []int{0, 1}, 2},
		{[]snapshot.Place{{PID: 1, Device: 1 << 30}}, []int{0}, 1},
	} {
		seen, _ := read(t, &snapshot.Snapshot{Layout: &snapshot.Layout{Places: test.places}})
		var got []int
		for _, d := range seen.About.Devices {
			got = append(got, d.Device)
		}
		if !reflect.DeepEqual(got, test.want) || len(seen.DeviceTraces) != test.traces {
			t.Errorf("of %+v: %v with %d traces", test.places, got, len(seen.DeviceTraces))
		}
	}
}

// What is free when memory lacks is said to be known, or not.
func TestLacked(t *testing.T) {
	for _, known := range []bool{true, false} {
		s := training()
		step := s.Layout.Change(5)
		step.FreeKnown = known
		s.Layout.Change, s.Layout.Changes = func(int) snapshot.Change { return step }, 1
		seen, _ := read(t, s)
		e := seen.DeviceTraces[0][0]
		if got := e.Metadata["device_free"]; e.Action != "oom" || e.Addr != nil || (got == "not known") == known || e.Metadata["owner"] != "pytorch" {
			t.Errorf("known %v: %+v", known, e)
		}
	}
}

// Without a layout the file is empty, and the viewer reads it.
func TestNoLayout(t *testing.T) {
	if seen, _ := read(t, &snapshot.Snapshot{}); len(seen.Segments) != 0 {
		t.Errorf("%+v", seen)
	}
}

// Python's pickle reads what the viewer's opcodes say.
func TestPython(t *testing.T) {
	_, b := read(t, training())
	cmd := exec.Command("python3", "-c", "import json, pickle, sys; json.dump(pickle.load(sys.stdin.buffer), sys.stdout)")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	v, err := pickletest.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(pickletest.Plain(v))
	if err != nil {
		t.Fatal(err)
	}
	var python, ours any
	if err := errors.Join(json.Unmarshal(out, &python), json.Unmarshal(text, &ours)); err != nil || !reflect.DeepEqual(python, ours) {
		t.Errorf("Python reads %s, %v", out, err)
	}
}

type full struct{ room int }

var errFull = errors.New("no space")

func (f *full) Write(b []byte) (int, error) {
	if f.room -= len(b); f.room < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestError(t *testing.T) {
	if err := Pickle(&full{100}, training()); !errors.Is(err, errFull) {
		t.Errorf("pickle: %v", err)
	}
}
