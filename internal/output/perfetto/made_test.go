package perfetto

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

// boot and start are of every recording here.
var (
	boot  = time.Unix(1_700_000_000, 0).UTC()
	start = boot.Add(time.Second)
	proc  = event.Process{PID: 7, Start: event.StartUnit}
	other = event.Process{PID: 8, Start: 2 * event.StartUnit}
)

// at is a time of records, so long after the trace began.
func at(after time.Duration) uint64 { return uint64(time.Second + after) }

func traceOf(more ...func(*record.Trace)) *record.Trace {
	t := &record.Trace{Version: "1", Target: "pid 7 (prog)", Boot: boot, Start: start, APIs: []string{"", "cuMemAlloc_v2", "cuMemFree_v2"}}
	for _, f := range more {
		f(t)
	}
	return t
}

func momentAt(after time.Duration) *record.Moment {
	return &record.Moment{Time: at(after), Slept: uint64(time.Minute), Drained: true}
}

func alloc(id event.Process, after time.Duration, stack, addr, size uint64) *event.Event {
	return &event.Event{Op: event.OpAlloc, Kind: event.KindDevice, Time: at(after), Proc: id, TID: id.PID, API: 1, Stack: stack, Addr: addr, Size: size}
}

func free(id event.Process, after time.Duration, addr uint64) *event.Event {
	return &event.Event{Op: event.OpFree, Time: at(after), Proc: id, TID: id.PID, API: 2, Addr: addr}
}

func exit(id event.Process, after time.Duration) *event.Event {
	return &event.Event{Op: event.OpExit, Time: at(after), Proc: id}
}

// stack is a call stack of one place.
func stack(id event.Process, number uint64, file, function string) *record.Stack {
	m := &snapshot.Mapping{Start: 0x1000, Limit: 0x9000, Path: file}
	l := &snapshot.Location{Address: 0x1000 + number, Mapping: m, Lines: []snapshot.Line{{Function: function, File: "/src/model.cc", Line: int(number)}}}
	return &record.Stack{ID: number, Process: id, Frames: []*record.Place{record.NewPlace(number, l.Address, l, nil)}}
}

func lossOf(all []loss.Counter, name string) uint64 {
	for _, c := range all {
		if c.Name == name {
			return c.Value
		}
	}
	return math.MaxUint64
}

// small has two processes, whose stacks are told after their events, a failure, a
// reading, and one exit; the other one ends unseen, and what has its PID then says so.
func small() []record.Record {
	reading := &record.Reading{
		Begin: at(50 * time.Millisecond), Time: at(60 * time.Millisecond),
		Devices:  []record.Device{{Label: "3", UUID: "GPU-3", Instance: -1}},
		Uses:     []record.Use{{Process: proc, Bytes: 1234, Known: true}, {Process: other}},
		Ordinals: []record.Ordinal{{Process: proc}, {Process: other}},
	}
	failed := alloc(proc, 65*time.Millisecond, 1, 0, 1<<40)
	failed.Result = event.OutOfMemory
	again := *failed
	again.Time = at(66 * time.Millisecond)
	framework := &event.Event{Op: event.OpOutOfMemory, Time: at(67 * time.Millisecond), Proc: proc, TID: 7, Size: 1 << 40, Handle: 500, Part: 600}
	later := event.Process{PID: 8, Start: 90 * event.StartUnit}
	return []record.Record{
		traceOf(func(t *record.Trace) { t.NVML = true }),
		&record.Process{Process: proc, Target: true, Name: "prog", FromStart: true},
		&record.Process{Process: other, Target: true, Name: "rank", FromStart: true},
		momentAt(0),
		alloc(proc, 10*time.Millisecond, 1, 16, 100),
		alloc(proc, 20*time.Millisecond, 2, 32, 50),
		alloc(other, 30*time.Millisecond, 3, 16, 7),
		stack(proc, 1, "/usr/lib/libtorch_cuda.so", "at::empty"), stack(proc, 2, "/usr/lib/libnccl.so.2", "ncclMemAlloc"), stack(other, 3, "/usr/bin/prog", "main"),
		free(proc, 40*time.Millisecond, 16),
		momentAt(45 * time.Millisecond),
		reading,
		failed, &again, framework,
		alloc(proc, 70*time.Millisecond, 1, 64, 1000),
		momentAt(75 * time.Millisecond),
		exit(proc, 80*time.Millisecond),
		alloc(later, 90*time.Millisecond, 3, 16, 9),
		momentAt(100 * time.Millisecond),
	}
}

func TestSmall(t *testing.T) {
	d, _, lost := written(t, recordtest.File(t, small()...), whole(true))
	var b bytes.Buffer
	fmt.Fprintln(&b, strings.Join(d.clocks, "\n"))
	d.write(&b, at(0))
	for _, c := range lost {
		fmt.Fprintf(&b, "%s %d\n", c.Name, c.Value)
	}
	snapshottest.Golden(t, "small.golden", b.Bytes())
}

// Of many events a counter has few points, and among them the highest and the lowest of
// each interval, at their times.
func TestPeaksAreExact(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const events = 200_000
	records := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"}}
	var live []uint64
	sizes := map[uint64]uint64{}
	values := make([]point, 0, events)
	sum := int64(0)
	for i := range events {
		now := time.Duration(i+1) * 10 * time.Microsecond
		if rng.IntN(100) < 50-len(live)/20 || len(live) == 0 {
			addr, size := uint64(i+1)*4096, 1+rng.Uint64N(1000)
			if rng.IntN(1000) == 0 {
				size *= 50 // a spike, perhaps the peak
			}
			records = append(records, alloc(proc, now, 1, addr, size))
			live, sizes[addr] = append(live, addr), size
			sum += int64(size)
		} else {
			j := len(live) - 1 - rng.IntN(min(len(live), 3))
			records = append(records, free(proc, now, live[j]))
			sum -= int64(sizes[live[j]])
			live = append(live[:j], live[j+1:]...)
		}
		values = append(values, point{at(now), sum})
		if i%1000 == 0 {
			records = append(records, momentAt(now))
		}
	}
	records = append(records, momentAt(time.Duration(events+1)*10*time.Microsecond))
	path := recordtest.File(t, records...)
	d, _, _ := written(t, path, whole(false))
	got := d.find(t, "prog / GPU cuda:0 allocations")
	if len(got.points) > 3*(maxIntervals+1) || len(got.points) < maxIntervals {
		t.Errorf("%d points", len(got.points))
	}
	has := map[point]bool{}
	for _, p := range got.points {
		has[p] = true
	}
	first := values[0].time
	width := (at(time.Duration(events+1)*10*time.Microsecond)-first)/maxIntervals + 1
	type ends struct{ low, high point }
	intervals := map[uint64]*ends{}
	for _, v := range values {
		n := (v.time - first) / width
		e := intervals[n]
		if e == nil {
			e = &ends{v, v}
			intervals[n] = e
		}
		if v.value < e.low.value {
			e.low = v
		}
		if v.value > e.high.value {
			e.high = v
		}
	}
	missing := 0
	for _, e := range intervals {
		if !has[e.low] || !has[e.high] {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("of %d intervals %d lack their lowest or highest value", len(intervals), missing)
	}
	for p := range has {
		if i := (p.time-at(0))/10_000 - 1; values[i] != p {
			t.Fatalf("%+v is none of the values: %+v", p, values[i])
		}
	}
}

// Names are a traced program's choice: they are cut, valid and printable in the trace.
// The decoder checks each.
func TestHostileNames(t *testing.T) {
	var long strings.Builder
	for i := range 10_000 {
		long.WriteString([]string{"é", "\x1b[2J", "\xff", "\u202e", "x"}[i%5])
	}
	for _, name := range []string{"\x00\x1b]0;x\a", strings.Repeat("\xff", 10_000), strings.Repeat("漢", 10_000), long.String(), strings.Repeat("\x01", 200), ""} {
		failed := alloc(proc, 3*time.Millisecond, 1, 0, 1<<40)
		failed.Result = event.OutOfMemory
		d, _, _ := written(t, recordtest.File(t,
			traceOf(func(t *record.Trace) { t.APIs = []string{"", name}; t.NVML = true }), &record.Process{Process: proc, Target: true, Name: name},
			momentAt(0), alloc(proc, time.Millisecond, 1, 16, 100), stack(proc, 1, "/x/site-packages/"+name+"/"+name, name), failed,
			&record.Reading{Time: at(4 * time.Millisecond), Devices: []record.Device{{Label: name, Instance: -1}}, Uses: []record.Use{{Process: proc, Known: true}}, Ordinals: []record.Ordinal{{Process: proc}}},
			free(proc, 5*time.Millisecond, 16), momentAt(6*time.Millisecond)), whole(true))
		if len(d.tracks) < 6 {
			t.Errorf("%.20q: tracks %d", name, len(d.tracks))
		}
	}
}

// What is live is told again where a recording has a gap: that is no change.
func TestKeyframe(t *testing.T) {
	first := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"}, momentAt(0),
		alloc(proc, 10*time.Millisecond, 1, 16, 100), alloc(proc, 20*time.Millisecond, 1, 32, 50), momentAt(25 * time.Millisecond)}
	again := []record.Record{&record.Cut{Time: at(30 * time.Millisecond)}, traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"},
		alloc(proc, 10*time.Millisecond, 1, 16, 100), alloc(proc, 20*time.Millisecond, 1, 32, 50), momentAt(30 * time.Millisecond),
		alloc(proc, 40*time.Millisecond, 1, 64, 1), free(proc, 50*time.Millisecond, 16), momentAt(60 * time.Millisecond)}
	for name, records := range map[string][]record.Record{"whole": append(first, again...), "begins with it": again} {
		d, _, lost := written(t, recordtest.File(t, records...), whole(true))
		got := d.find(t, "prog / GPU cuda:0 allocations")
		for _, p := range got.points {
			if p.time > at(25*time.Millisecond) && p.value < 51 {
				t.Errorf("%s: %+v", name, got.points)
			}
		}
		if got.last() != 51 {
			t.Errorf("%s: %d at the end", name, got.last())
		}
		if n := lossOf(lost, "perfetto_slices_full"); n != 0 {
			t.Errorf("%s: %d slices lost", name, n)
		}
	}
}

// Slices of one track do not overlap, and each allocation has one.
func TestSlices(t *testing.T) {
	for _, name := range []string{"profiler", "torch_expandable"} {
		path := "../../../test/recordings/" + name + ".gmt"
		d, snap, lost := written(t, path, whole(true))
		begun, ended := 0, 0
		for _, x := range d.tracks {
			depth := 0
			for _, e := range x.events {
				switch e.kind {
				case 1:
					begun++
					depth++
				case 2:
					ended++
					depth--
				}
				if depth < 0 || depth > 1 {
					t.Fatalf("%s: %d slices at once on %q", name, depth, d.path(x))
				}
			}
		}
		var all int64
		for i := range snap.Samples {
			switch snap.Samples[i].Kind {
			case "tensor", "vmm", "device", "host":
				all += snap.Samples[i].AllocObjects
			}
		}
		// What caching allocators hand out of is shown as cached, without counts.
		if int64(begun) < all || begun != ended || lossOf(lost, "perfetto_slices_full") != 0 {
			t.Errorf("%s: %d began and %d ended, of %d", name, begun, ended, all)
		}
		if again, _, _ := written(t, path, whole(true)); fmt.Sprint(len(again.tracks)) != fmt.Sprint(len(d.tracks)) {
			t.Errorf("%s: %d tracks, then %d", name, len(d.tracks), len(again.tracks))
		}
	}
}

// What ends many allocations at once, or many processes, ends them in an order of its own.
func TestOneOrder(t *testing.T) {
	records := []record.Record{traceOf(), momentAt(0)}
	for p := range uint32(30) {
		id := event.Process{PID: 10 + p, Start: event.StartUnit}
		records = append(records, &record.Process{Process: id, Target: true, Name: "prog"})
		for i := range uint64(50) {
			records = append(records, alloc(id, time.Millisecond, i%7+1, (i+1)<<12, 1))
		}
		if p < 15 {
			records = append(records, &event.Event{Op: event.OpExec, Time: at(2 * time.Millisecond), Proc: id})
		}
	}
	records = append(records, momentAt(3*time.Millisecond))
	path := recordtest.File(t, records...)
	var first []byte
	for range 5 {
		var b bytes.Buffer
		if _, _, err := Write(&b, path, whole(true)); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b.Bytes()
		} else if !bytes.Equal(first, b.Bytes()) {
			t.Fatal("the same recording gives other bytes")
		}
	}
}

// There are only so many counters: the others' bytes are in the totals, and are told of.
func TestTracksAreBounded(t *testing.T) {
	records := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"}, momentAt(0)}
	for i := range uint64(maxTracks + 50) {
		records = append(records, stack(proc, i+1, fmt.Sprintf("/usr/lib/libowner%d.so", i), "f"), alloc(proc, time.Duration(i+1)*time.Microsecond, i+1, (i+1)<<12, 1))
	}
	d, _, lost := written(t, recordtest.File(t, append(records, momentAt(time.Second))...), whole(false))
	counters := 0
	for _, x := range d.tracks {
		if x.counter {
			counters++
		}
	}
	if n := lossOf(lost, "perfetto_tracks_full"); counters != maxTracks || n != 51 {
		t.Errorf("%d counters, %d lost", counters, n)
	}
	if got := d.find(t, "prog / GPU cuda:0 allocations").last(); got != maxTracks+50 {
		t.Errorf("total %d", got)
	}
}

// So are instants.
func TestInstantsAreBounded(t *testing.T) {
	records := []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"}, momentAt(0)}
	for i := range maxInstants + 20 {
		e := alloc(proc, time.Duration(i+1)*time.Second, 1, 0, 5)
		e.Result = event.OutOfMemory
		records = append(records, e)
		if i%100 == 0 {
			records = append(records, momentAt(time.Duration(i+1)*time.Second))
		}
	}
	d, _, lost := written(t, recordtest.File(t, records...), whole(false))
	if n := len(d.find(t, "prog / out of memory").events); n != maxInstants || lossOf(lost, "perfetto_instants_full") != 20 {
		t.Errorf("%d instants, %d lost", n, lossOf(lost, "perfetto_instants_full"))
	}
}

// A moment that the recording does not have is replay's error.
func TestNoMoment(t *testing.T) {
	_, _, err := Write(&bytes.Buffer{}, recordtest.File(t, small()...), Options{Play: replay.Options{At: time.Hour}})
	if err == nil || !strings.Contains(err.Error(), "it ends at") {
		t.Error(err)
	}
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, fmt.Errorf("no space left")
	}
	return len(b), nil
}

// What cannot be written is an error.
func TestFull(t *testing.T) {
	for _, left := range []int{0, 100_000} {
		_, _, err := Write(&full{left}, "../../../test/recordings/profiler.gmt", whole(true))
		if err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Error(err)
		}
	}
}

// Where not every tensor is told, their counters are estimates and say so, and what pools
// hold in no tensor has none.
func TestSomeTensors(t *testing.T) {
	const mib = 1 << 20
	for name, x := range map[string]struct {
		told  record.Tensors
		bytes int64
	}{
		"tensors":             {record.Tensors{}, mib},
		"tensors (estimated)": {record.Tensors{Sample: mib}, 1658823}, // 1 MiB / (1 - 1/e)
	} {
		made := &event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Time: at(2 * time.Millisecond), Proc: proc, TID: 7,
			Stack: 2, Addr: 1 << 30, Size: mib, Handle: event.NoTotal, Part: event.NoTotal}
		d, _, _ := written(t, recordtest.File(t, traceOf(), &x.told, &record.Process{Process: proc, Target: true, Name: "prog"}, momentAt(0),
			alloc(proc, time.Millisecond, 1, 1<<30, 20*mib), made, momentAt(3*time.Millisecond)), whole(false))
		var names []string
		for _, one := range d.tracks {
			if path := d.path(one); one.counter && strings.Contains(path, "tensors") {
				names = append(names, path)
			}
		}
		if got := d.find(t, "prog / GPU cuda:0 "+name).last(); got != x.bytes || len(names) != 2 {
			t.Errorf("%s: %d bytes; %q", name, got, names)
		}
		cached := slices.ContainsFunc(d.tracks, func(one *track) bool { return strings.Contains(d.path(one), "cached") })
		if every := x.told.Sample == 0; cached != every {
			t.Errorf("%s: a counter of what is cached: %v", name, cached)
		}
	}
}
