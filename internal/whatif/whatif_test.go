package whatif

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

func recording(t testing.TB, name string) *Run {
	t.Helper()
	runs, err := Collect(filepath.Join("../../test/recordings", name))
	if err != nil {
		t.Fatal(err)
	}
	if len(runs) != 1 {
		t.Fatalf("%s has %d runs, want 1", name, len(runs))
	}
	return runs[0]
}

// What PyTorch did on a GPU is the truth: every tensor must come to lie where it lay, and
// as much must be reserved after each request.
func TestRecordings(t *testing.T) {
	expandable := allocator.Settings{Expandable: true}
	for name, test := range map[string]struct {
		own     allocator.Settings
		tensors int
		streams int
	}{
		"allocator/bert.gmt":            {tensors: 9403, streams: 1},
		"allocator/bert_expandable.gmt": {own: expandable, tensors: 9403, streams: 1},
		"profiler.gmt":                  {tensors: 3471, streams: 1},
		// Inference on four streams of their own.
		"allocator/streams.gmt":            {tensors: 2016, streams: 5},
		"allocator/streams_expandable.gmt": {own: expandable, tensors: 2690, streams: 5},
		// CUDA graphs, two of which share a private pool, a torch.cuda.MemPool, and what they leave
		// when they end.
		"allocator/pools.gmt":            {tensors: 263, streams: 3},
		"allocator/pools_expandable.gmt": {own: expandable, tensors: 263, streams: 3},
		// Tensors of another stream (record_stream), and empty_cache now and then.
		"allocator/record_stream.gmt": {tensors: 1404, streams: 2},
		"pools.gmt":                   {tensors: 10, streams: 3},
	} {
		t.Run(name, func(t *testing.T) {
			x := recording(t, name)
			c := x.Check(test.own)
			if c.Made != test.tensors || c.Same != c.Made || c.Streams != test.streams {
				t.Errorf("%d of %d tensors at their address, %d streams; want all of %d, %d", c.Same, c.Made, c.Streams, test.tensors, test.streams)
			}
			emptied := 0 // the recording says what was reserved after the request that follows
			for i := range x.Requests {
				if x.Requests[i].Op == allocator.Empty {
					emptied++
				}
			}
			if name != "pools.gmt" && c.Reserved < len(x.Requests)-emptied {
				t.Errorf("as much reserved after %d of %d requests", c.Reserved, len(x.Requests))
			}
			if c.Peak != x.peak() {
				t.Errorf("peak %d, PyTorch's was %d", c.Peak, x.peak())
			}
		})
	}
}

// A program ran under several settings: a recording predicts the peaks of the other runs.
func TestPredictsOthers(t *testing.T) {
	for _, test := range []struct {
		recording, setting string
		want               uint64
	}{
		{"bert", "expandable_segments:True", recording(t, "allocator/bert_expandable.gmt").peak()},
		{"bert_expandable", "expandable_segments:False", recording(t, "allocator/bert.gmt").peak()},
		{"streams", "expandable_segments:True", 891289600},
		{"streams", "max_split_size_mb:32", 1382023168},
		{"streams", "roundup_power2_divisions:4", 1340080128},
		{"pools", "expandable_segments:True", recording(t, "allocator/pools_expandable.gmt").peak()},
		{"pools_expandable", "expandable_segments:False", recording(t, "allocator/pools.gmt").peak()},
	} {
		s, err := ParseSetting(test.setting)
		if err != nil {
			t.Fatal(err)
		}
		x := recording(t, "allocator/"+test.recording+".gmt")
		for _, r := range Predict(x, Options{More: []Setting{s}}).Rows {
			if r.Setting == test.setting && r.Peak != test.want {
				t.Errorf("%s under %s: peak %d, was %d", test.recording, test.setting, r.Peak, test.want)
			}
		}
	}
}

// A peak depends on what a recording does not tell. Under the default the program of "streams" reserved
// what placing segments upwards gives, and that of "pools" under expandable segments less than blocks
// without anything to spare need. What the tensors of "streams" needed is known of a run under expandable
// segments, whose recording has every size.
func TestSpread(t *testing.T) {
	for _, test := range []struct {
		recording string
		settings  allocator.Settings
		real      uint64
		low, high uint64
	}{
		{"streams", allocator.Settings{}, 1335885824, 1323302912, 1335885824},
		{"streams", uncached, 543681536, 534244352, 547538432},
		{"pools", allocator.Settings{Expandable: true}, 725614592, 725614592, 744488960},
		{"bert_expandable", allocator.Settings{Expandable: true}, 3697278976, 3697278976, 3697278976},
	} {
		x := recording(t, "allocator/"+test.recording+".gmt")
		Predict(x, Options{})
		low, high := x.Spread(test.settings, x.Play(test.settings, -1).Peak)
		if low != test.low || high != test.high || test.real < low || test.real > high {
			t.Errorf("%s: %d to %d, want %d to %d; the peak was %d", test.recording, low, high, test.low, test.high, test.real)
		}
	}
	x := recording(t, "allocator/pools.gmt")
	var text bytes.Buffer
	if err := Write(&text, []*Prediction{Predict(x, Options{})}, Options{}); err != nil {
		t.Fatal(err)
	}
	if want := "692 MiB  692 MiB to 710 MiB  +60.0 MiB"; !strings.Contains(text.String(), want) || !strings.Contains(text.String(), "PEAK MAY BE shows how far") {
		t.Errorf("%q is not in\n%s", want, text.String())
	}
}

// Requests that are smaller than their blocks are served by the same blocks, and seldom differ from
// what the program asked for. Expandable segments show that: their blocks are always cut.
func TestRefine(t *testing.T) {
	x, exact := recording(t, "allocator/bert.gmt"), recording(t, "allocator/bert_expandable.gmt").blocks()
	x.Check(allocator.Settings{})
	before := x.blocks()
	x.refine()
	changed, wrong, beyond := 0, 0, 0
	for i, b := range x.blocks() {
		was, want := before[i], exact[i].units
		if b.units != was.units {
			changed++
		}
		if b.units != want {
			wrong++
		}
		if want > was.units || want+was.spare < was.units {
			beyond++
		}
	}
	if changed != 279 || wrong != 69 || beyond != 0 {
		t.Errorf("%d sizes changed, %d are wrong, %d were not possible", changed, wrong, beyond)
	}
	if c := x.Check(allocator.Settings{}); c.Same != c.Made {
		t.Errorf("%d of %d tensors at their address", c.Same, c.Made)
	}
}

// lacking is a run of a GPU of 100 MiB that failed: two segments of 40 MiB have a tensor of
// 25 MiB each, so that 30 MiB are free, but not in one piece.
func lacking() *Run {
	const mib = 1 << 20
	x := &Run{Name: "python3"}
	a := allocator.New(allocator.Settings{Limit: 100 * mib})
	add := func(q allocator.Request) {
		x.Requests = append(x.Requests, q)
		x.Reserved = append(x.Reserved, uint32(a.Reserved/unit))
	}
	var blocks []*allocator.Block
	for i, size := range []uint64{40, 40, 25, 25} {
		if i == 2 {
			for i, b := range blocks {
				a.Free(b)
				add(allocator.Request{Op: allocator.Free, Tensor: uint32(i)})
			}
		}
		b := a.Allocate(size*mib, 0, 0)
		blocks = append(blocks, b)
		x.Addresses = append(x.Addresses, b.Address)
		add(allocator.Request{Op: allocator.Make, Tensor: uint32(i), Units: uint32(size * mib / unit)})
	}
	x.Lacked = []Refusal{{Request: len(x.Requests), Wanted: 30 * mib, Reserved: a.Reserved}}
	x.Addresses = append(x.Addresses, 0)
	add(allocator.Request{Op: allocator.Make, Tensor: 4, Units: 30 * mib / unit, Flags: allocator.Lacked})
	add(allocator.Request{Op: allocator.Free, Tensor: 4})
	return x
}

func TestOutOfMemory(t *testing.T) {
	p := Predict(lacking(), Options{})
	if want := "With expandable_segments:True the request of 30.0 MiB that failed would have been served"; !strings.HasPrefix(p.Answer(), want) {
		t.Errorf("%q, want %q", p.Answer(), want)
	}
	for _, r := range p.Rows {
		want := map[string]string{"PyTorch's default (this run)": "no", "expandable_segments:True": "yes", "max_split_size_mb:64": "no", "a perfect allocator": "yes"}[r.Setting]
		if want != "" && r.Served != want {
			t.Errorf("%s: served %q, want %q", r.Setting, r.Served, want)
		}
	}
}

// A run that is not reproduced is not predicted.
func TestRefuses(t *testing.T) {
	x := lacking()
	for i := range x.Addresses {
		x.Addresses[i] ^= 0x5000 * uint64(i)
	}
	p := Predict(x, Options{})
	if p.Reason == "" || !strings.HasPrefix(p.Answer(), "No prediction: ") {
		t.Errorf("%d of %d tensors at their address, and yet: %s", p.Same, p.Tensors, p.Answer())
	}
	if want := "or its allocator differs. Of the others, for 2 PyTorch passed over a free block"; !strings.Contains(p.Answer(), want) {
		t.Errorf("%q, want %q", p.Answer(), want)
	}
	for _, r := range p.Rows[1:] {
		if r.Setting != "no caching" && r.Setting != "a perfect allocator" {
			t.Errorf("predicts %q", r.Setting)
		}
	}
}

func TestWrite(t *testing.T) {
	x := recording(t, "allocator/bert.gmt")
	own, err := ParseSetting("expandable_segments:True,roundup_power2_divisions:[256:1,>:4]")
	if err != nil {
		t.Fatal(err)
	}
	p := []*Prediction{Predict(x, Options{More: []Setting{own}})}
	var text, object bytes.Buffer
	if err := Write(&text, p, Options{}); err != nil {
		t.Error(err)
	}
	for _, want := range []string{
		"With expandable_segments:True PyTorch would have reserved 3.44 GiB at the peak instead of 6.24 GiB.",
		"python3 (662) on GPU 0\n", "5.77 GiB   -478 MiB", "6.24 GiB             2.80 GiB (44.9%)", "placed 9403 of 9403 allocations", "roundup_power2_divisions:[256:1,>:4]", "a perfect allocator",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if err := WriteJSON(&object, p); err != nil || !strings.Contains(object.String(), `"peak_reserved_bytes": 6698303488`) {
		t.Errorf("%v: %s", err, object.String())
	}
}

// What cuDNN asked for as workspaces is doubtful under another setting.
func TestWorkspaces(t *testing.T) {
	for name, want := range map[string]uint64{"allocator/record_stream.gmt": 30 << 20, "allocator/bert.gmt": 0} {
		x := recording(t, name)
		p := Predict(x, Options{})
		if p.Workspaces != want {
			t.Errorf("%s: workspaces of %d bytes, want %d", name, p.Workspaces, want)
		}
		var text bytes.Buffer
		if err := Write(&text, []*Prediction{p}, Options{Width: 1000}); err != nil {
			t.Fatal(err)
		}
		const warning = "cuDNN's workspaces for convolutions had up to 30.0 MiB at once. cuDNN may choose others under another setting: the figures may be wrong by so much.\n"
		if strings.Contains(text.String(), warning) != (want > 0) {
			t.Errorf("%s", text.String())
		}
	}
	if text := doubt(9, 1000, ""); text != "" {
		t.Errorf("%q of less than 1 %% of the peak", text)
	}
}

// The sentence names what was reserved, and what tensors needed.
func TestMost(t *testing.T) {
	for _, test := range []struct {
		run  *Run
		want string
	}{
		{recording(t, "allocator/bert.gmt"), "Of the 6.24 GiB that PyTorch reserved at the peak, 2.80 GiB was cached, not in tensors: 240 MiB was lost to fragmentation, beside tensors, and 2.57 GiB lay in empty segments. No setting can save more than 2.81 GiB: the program asked for 3.43 GiB at some moment."},
		// It holds 7 tensors of 160 MiB and one of 300 at the peak, and 8 of 160 when 500 more fail.
		{recording(t, "allocator/fragmented.gmt"), "Of the 2.34 GiB that PyTorch reserved at the peak, 980 MiB was cached, not in tensors, and lost to fragmentation, beside tensors. No setting can save more than 620 MiB: the program asked for 1.74 GiB at some moment, with the request of 500 MiB that failed."},
		{lacking(), "Of the 80.0 MiB that PyTorch reserved at the peak, 0 B was cached, not in tensors. No setting can save anything: the program asked for 80.0 MiB at some moment, with the request of 30.0 MiB that failed."},
		{&Run{Partial: "the trace took a sample"}, ""},
	} {
		if got := Predict(test.run, Options{}).Most(); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

// A GPU is named as the driver does, and by the process's own number only if nothing shows
// which one that is.
func TestTitle(t *testing.T) {
	id := event.Process{PID: 7, Start: event.StartUnit}
	devices := []record.Device{{UUID: "A", Label: "0"}, {UUID: "B", Label: "1:2", MemoryKnown: true, Total: 80 << 30}}
	for _, test := range []struct {
		readings []*record.Reading
		want     string
		memory   uint64
	}{
		{nil, "x on CUDA device 0", 0},
		{[]*record.Reading{{Devices: devices}}, "x on CUDA device 0", 0},
		{[]*record.Reading{{Devices: devices[1:]}}, "x on GPU 1:2", 80 << 30},
		{[]*record.Reading{{Devices: devices[1:]}, {Devices: devices[:1]}}, "x on CUDA device 0", 0},
		{[]*record.Reading{{Devices: devices, Ordinals: []record.Ordinal{{Process: id, Device: 1}}}, {Devices: devices}}, "x on GPU 1:2", 80 << 30},
	} {
		path := filepath.Join(t.TempDir(), "run.gmt")
		w := recordtest.Create(t, path)
		start := time.Unix(1_700_000_000, 0)
		w.Append(&record.Trace{Version: "1", Boot: start, Start: start, NVML: true})
		for _, r := range test.readings {
			w.Append(r)
		}
		w.Append(&event.Event{Proc: id, Time: 1000, Op: event.OpTensorAlloc, Addr: 1 << 20, Size: 512, Handle: 512, Part: 2 << 20})
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		runs, err := Collect(path)
		if err != nil || len(runs) != 1 {
			t.Fatal(len(runs), err)
		}
		if got := runs[0].title("x"); got != test.want || runs[0].Memory != test.memory {
			t.Errorf("%q with %d bytes, want %q with %d", got, runs[0].Memory, test.want, test.memory)
		}
	}
}

func BenchmarkPredict(b *testing.B) {
	runs, err := Collect("../../test/recordings/allocator/bert.gmt")
	if err != nil {
		b.Fatal(err)
	}
	events := 0
	for b.Loop() {
		Predict(runs[0], Options{})
		events += len(runs[0].Requests)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(events), "ns/event")
}

// A run whose tensors were seen in windows alone is not repeated.
func TestWindows(t *testing.T) {
	w := record.Window{Length: 2e9, Every: 60e9}
	path := recordtest.File(t, &record.Trace{}, &record.Tensors{Window: w}, &event.Event{Op: event.OpTensorAlloc, Time: 1, Addr: 512, Size: 512, Proc: event.Process{PID: 1}})
	if runs, err := Collect(path); !errors.Is(err, ErrWindows) || runs != nil || !strings.Contains(err.Error(), path) {
		t.Errorf("%v, %v", runs, err)
	}
}
