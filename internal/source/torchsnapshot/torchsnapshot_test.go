package torchsnapshot

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/pickle"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// realFile returns one of the real files.
func realFile(t testing.TB, name string) []byte {
	t.Helper()
	return recordtest.Snapshot(t, "../../../test/recordings/snapshots", name)
}

// A told is what the records of a file add up to.
type told struct {
	trace    *record.Trace
	settings string
	notes    []string
	stacks   map[uint64]*record.Stack
	segments map[[2]uint64]uint64 // bytes by GPU and address
	mapped   map[uint64][2]uint64 // the range that shows a handle
	tensors  map[[2]uint64]event.Event
	first    map[[2]uint64]event.Event // those from before
	last     event.Event               // of a tensor
	failed   []event.Event
	pools    []event.Event
}

func tell(data []byte) (*told, error) {
	x := &told{stacks: map[uint64]*record.Stack{}, segments: map[[2]uint64]uint64{}, mapped: map[uint64][2]uint64{}, tensors: map[[2]uint64]event.Event{}, first: map[[2]uint64]event.Event{}}
	err := read(io.NewSectionReader(bytes.NewReader(data), 0, int64(len(data))), data[:min(len(data), 32)], "x/run.pickle", x.add)
	return x, err
}

func (x *told) add(r record.Record) {
	switch r := r.(type) {
	case *record.Trace:
		x.trace = r
	case *record.Allocator:
		x.settings = r.Settings
	case *record.Note:
		x.notes = append(x.notes, r.Text)
	case *record.Stack:
		x.stacks[r.ID] = r
	case *event.Event:
		at := [2]uint64{uint64(r.Device), r.Addr}
		switch r.Op {
		case event.OpAlloc:
			if r.Result == event.Success {
				x.segments[at] = r.Size
			}
		case event.OpFree:
			delete(x.segments, at)
		case event.OpMap:
			x.segments[at] = r.Size
			x.mapped[r.Handle] = at
		case event.OpHandleRelease:
			delete(x.segments, x.mapped[r.Handle])
		case event.OpTensorAlloc:
			x.tensors[at], x.last = *r, *r
			if r.Time == uint64(x.trace.Start.Sub(x.trace.Boot)) {
				x.first[at] = *r
			}
		case event.OpTensorFree:
			delete(x.tensors, at)
			x.last = *r
		case event.OpOutOfMemory:
			x.failed = append(x.failed, *r)
		case event.OpPrivatePoolBegin, event.OpPrivatePoolEnd:
			x.pools = append(x.pools, *r)
		}
	}
}

// python returns the lines of a stack's frames of Python.
func (x *told) python(id uint64) (out []string) {
	for _, p := range x.stacks[id].Frames {
		if l := p.Location().Lines[0]; p.Address == 0 {
			out = append(out, fmt.Sprintf("%s %s:%d", l.Function, l.File, l.Line))
		}
	}
	return out
}

// TestReal checks that what the records of real files make is at the end what the files say is
// there: segments, blocks and their stacks. Their history begins in the middle.
func TestReal(t *testing.T) {
	for _, c := range []struct {
		name                         string
		reserved, active             uint64
		segments, blocks, first, odd int
		without                      string
	}{
		{"forward", 19667091456, 19498420224, 516, 1227, 324, 0, "71%"},
		{"forward_mixed", 24245174272, 24018738176, 688, 1613, 324, 0, "57%"},
		{"compiled", 121634816, 44040192, 5, 9, 0, 0, ""},
		{"small", 262144000, 8704, 5, 17, 17, 520 + 5, ""},
	} {
		data := realFile(t, c.name)
		x, err := tell(data)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		reserved, active := uint64(0), uint64(0)
		for _, n := range x.segments {
			reserved += n
		}
		for _, e := range x.tensors {
			active += e.Size
		}
		if reserved != c.reserved || active != c.active || len(x.segments) != c.segments || len(x.tensors) != c.blocks || len(x.first) != c.first {
			t.Errorf("%s: %d bytes in %d segments, %d in %d tensors, of which %d were there before", c.name, reserved, len(x.segments), active, len(x.tensors), len(x.first))
		}
		if x.last.Handle != c.active || x.last.Part != c.reserved {
			t.Errorf("%s: the last event says %d of %d", c.name, x.last.Handle, x.last.Part)
		}
		if notes := strings.Join(x.notes, "\n"); strings.Contains(notes, "do not fit") != (c.odd > 0) || strings.Contains(x.trace.Target, "no stack") != (c.without != "") || !strings.Contains(x.trace.Target, c.without) {
			t.Errorf("%s: %q says %q", c.name, x.trace.Target, notes)
		}
		f, err := parse(bytes.NewReader(data), data[0])
		if err != nil {
			t.Fatal(err)
		}
		compared := 0
		for _, b := range f.devices[0].blocks {
			e := x.tensors[[2]uint64{0, b.address}]
			if e.Size != b.size || e.Asked != b.requested {
				t.Fatalf("%s: at %#x are %d bytes of %d, want %d of %d", c.name, b.address, e.Asked, e.Size, b.requested, b.size)
			}
			var want []string
			for _, v := range f.items(b.frames) {
				if file := f.string(f.get(v, "filename")); python(file) {
					want = append(want, fmt.Sprintf("%s %s:%d", f.string(f.get(v, "name")), file, f.get(v, "line").number()))
				}
			}
			got := slices.DeleteFunc(x.python(e.Stack), func(s string) bool { return strings.HasPrefix(s, "[") }) // annotations and such
			if !slices.Equal(got, want) {
				t.Fatalf("%s: at %#x the stack is %q, want %q", c.name, b.address, got, want)
			}
			if len(want) > 0 {
				compared++
			}
		}
		if c.odd == 0 && compared != c.blocks-c.first {
			t.Errorf("%s: %d stacks compared", c.name, compared)
		}
	}
}

// A dictionary of a file that a test makes.
type m = map[string]any

// pickled writes a value as a pickle, with keys in order.
func pickled(t testing.TB, v any) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pickle.New(&b)
	put(w, v)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func put(w *pickle.Writer, v any) {
	switch v := v.(type) {
	case m:
		w.Dict(nil, func() {
			keys := make([]string, 0, len(v))
			for k := range v {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			for _, k := range keys {
				w.String(k)
				put(w, v[k])
			}
		})
	case []any:
		w.List(nil, func() {
			for _, x := range v {
				put(w, x)
			}
		})
	case string:
		w.String(v)
	case int:
		w.Int(int64(v))
	case bool:
		w.Bool(v)
	case [2]int:
		w.Pair(int64(v[0]), int64(v[1]))
	}
}

const (
	gib  = 1 << 30
	base = 1 << 46
)

func frames(line int) []any {
	return []any{m{"name": "step", "filename": "/home/u/train.py", "line": line}}
}

func traced(action string, addr, size, time, line int) m {
	return m{"action": action, "addr": addr, "size": size, "stream": 0, "time_us": time, "frames": frames(line)}
}

// two is a file of two GPUs: an expandable segment that grows and shrinks on the first, a private
// pool, a side stream and a failure on the second.
func two() m {
	grows := traced("segment_map", base+40<<20, 20<<20, 103, 3)
	small := traced("alloc", base+60<<20, 1000, 104, 4)
	side := traced("alloc", 2*base+1<<20, 2000, 102, 7)
	side["stream"], side["compile_context"] = 9, "0/1"
	lacks := m{"action": "oom", "device_free": 5 << 20, "size": gib, "stream": 0, "time_us": 105, "frames": frames(8)}
	return m{
		"segments": []any{
			m{"device": 0, "address": base, "total_size": 40 << 20, "active_size": 10 << 20, "stream": 0, "segment_type": "large", "is_expandable": true, "segment_pool_id": [2]int{0, 0}, "blocks": []any{
				m{"address": base, "size": 10 << 20, "requested_size": 10<<20 - 5, "state": "active_allocated", "frames": frames(1)},
				m{"address": base + 10<<20, "size": 30 << 20, "requested_size": 0, "state": "inactive", "frames": []any{}},
			}},
			m{"device": 1, "address": 2 * base, "total_size": 2 << 20, "active_size": 2048, "stream": 9, "segment_type": "small", "is_expandable": false, "segment_pool_id": [2]int{0, 4}, "blocks": []any{
				m{"address": 2 * base, "size": 1 << 20, "requested_size": 0, "state": "inactive", "frames": []any{}},
				m{"address": 2*base + 1<<20, "size": 2048, "requested_size": 2000, "state": "active_pending_free", "frames": frames(7)},
				m{"address": 2*base + 1<<20 + 2048, "size": 1<<20 - 2048, "requested_size": 0, "state": "inactive", "frames": []any{}},
			}},
		},
		"device_traces": []any{
			[]any{grows, traced("segment_map", base+60<<20, 20<<20, 103, 3), small, traced("free_requested", base+60<<20, 1000, 106, 5), traced("free_completed", base+60<<20, 1000, 106, 5), traced("segment_unmap", base+40<<20, 40<<20, 107, 6)},
			[]any{traced("segment_alloc", 2*base, 2<<20, 101, 7), side, lacks, traced("snapshot", 0, 0, 108, 9)},
		},
		"allocator_settings": m{"PYTORCH_CUDA_ALLOC_CONF": "", "expandable_segments": true, "max_split_size": -1, "trace_alloc_overflowed": true},
		"external_annotations": []any{
			m{"device": 1, "stage": "START", "name": "forward", "time_us": 90}, m{"device": 1, "stage": "START", "name": "ProfilerStep#3", "time_us": 100},
			m{"device": 1, "stage": "END", "name": "ProfilerStep#3", "time_us": 103}, m{"device": 7, "stage": "START", "name": "x", "time_us": 1},
		},
	}
}

func TestExpandableAndPrivate(t *testing.T) {
	asJSON, err := json.Marshal(two())
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"pickle": pickled(t, two()), "JSON": asJSON} {
		x, err := tell(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		// What was there before is 40 MiB, in which one tensor lies.
		first := x.first[[2]uint64{0, base}]
		if first.Asked != 10<<20-5 || first.Size != 10<<20 || len(x.first) != 1 || fmt.Sprint(x.python(first.Stack)) != "[step /home/u/train.py:1]" {
			t.Errorf("%s: before: %+v", name, x.first)
		}
		if len(x.segments) != 2 || x.segments[[2]uint64{0, base}] != 40<<20 || x.segments[[2]uint64{1, 2 * base}] != 2<<20 {
			t.Errorf("%s: segments: %v", name, x.segments)
		}
		side := x.tensors[[2]uint64{1, 2*base + 1<<20}]
		if len(x.tensors) != 2 || side.Stream != 9 || side.Size != 2048 || side.Handle != 2048 || side.Part != 2<<20 {
			t.Errorf("%s: tensors: %+v", name, x.tensors)
		}
		var around []string
		for _, p := range x.stacks[side.Stack].Frames[3:] {
			around = append(around, p.Location().Lines[0].Function)
		}
		if !slices.Equal(around, []string{snapshot.Compiled + "0/1", snapshot.Annotation + "ProfilerStep", snapshot.Annotation + "forward"}) {
			t.Errorf("%s: around it: %q", name, around)
		}
		if n := len(x.stacks[x.failed[0].Stack].Frames); n != 4 { // the allocator twice, the line, and forward
			t.Errorf("%s: the failure has %d frames", name, n)
		}
		if len(x.pools) != 1 || x.pools[0].Op != event.OpPrivatePoolBegin || x.pools[0].Part != 4 || x.pools[0].Device != 1 {
			t.Errorf("%s: pools: %+v", name, x.pools)
		}
		if len(x.failed) != 1 || x.failed[0].Size != gib || x.failed[0].Handle != 2048 || x.failed[0].Part != 2<<20 {
			t.Errorf("%s: failures: %+v", name, x.failed)
		}
		if x.settings != "expandable_segments:True" || !strings.Contains(strings.Join(x.notes, " "), "max_entries") {
			t.Errorf("%s: %q, %q", name, x.settings, x.notes)
		}
	}
}

// TestOld reads a file as PyTorch 2.0 wrote it: blocks with a history of their own, without addresses,
// and a trace without times.
func TestOld(t *testing.T) {
	old := m{
		"segments": []any{m{"device": 0, "address": base, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": []any{
			m{"size": 1024, "state": "active_allocated", "history": []any{m{"addr": base, "real_size": 1000, "frames": frames(1)}}},
			m{"size": 2<<20 - 1024, "state": "inactive"},
		}}},
		"device_traces": []any{[]any{
			m{"action": "alloc", "addr": base + 1024, "size": 512, "stream": 0, "frames": frames(2)},
			m{"action": "free_completed", "addr": base + 1024, "size": 512, "stream": 0, "frames": frames(3)},
		}},
	}
	x, err := tell(pickled(t, old))
	if err != nil {
		t.Fatal(err)
	}
	e := x.tensors[[2]uint64{0, base}]
	if len(x.tensors) != 1 || e.Asked != 1000 || e.Size != 1024 || fmt.Sprint(x.python(e.Stack)) != "[step /home/u/train.py:1]" || len(x.notes) != 1 {
		t.Errorf("%+v %q", x.tensors, x.notes)
	}
}

func TestRefused(t *testing.T) {
	empty := "}\x8c\x08segments]s\x8c\x0ddevice_traces]s."
	for data, want := range map[string]string{
		"\x80\x04" + empty: "",
		"\x80\x02" + empty: "",
		"\x80\x05" + empty: "",
		"\x80\x06" + empty: "protocol 6",
		"\x80\x04cos\nsystem\n(X\x02\x00\x00\x00lstR.": `"os.system"`,
		"\x80\x04\x8c\x02os\x8c\x06system\x93.":        `"os.system"`,
		"\x80\x04(\x8c\x02lsi":                         "(INST)",
		"\x80\x04NR.":                                  "(REDUCE)",
		"\x80\x04Nb.":                                  "(BUILD)",
		"\x80\x04K\x01.":                               "lacks segments",
		"\x80\x04}\x8c\x08segments]s.":                 "lacks segments",
		"\x80\x04":                                     "ends early",
		"\x80\x04\x8c\xff":                             "ends early",
		"\x80\x04X\xff\xff\xff\xffx":                   "text or number of",
		"\x80\x04e.":                                   "mark is missing",
		"\x80\x04a.":                                   "stack is empty",
		"\x80\x04(a.":                                  "stack is empty",
		"\x80\x04K\x01K\x02a.":                         "appends to a whole number",
		"\x80\x04h\x05.":                               "refers to value 5",
		"\x80\x04q\x05.":                               "its stack is empty",
		"\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x01.": "64 bits",
		"\x80\x04\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\xff.": "64 bits",
		"\x80\x04}K\x01K\x02s.":                                 "as a key",
		"\x80\x04]\x94h\x00a.":                                  "lacks segments", // a list in itself
		strings.Repeat("[", 3):                                  "",
		`{"segments": [], "device_traces": []}`:                 "",
		`{"segments": 1}`:                                       "lacks segments",
		`{"segments": [`:                                        "ends early",
		strings.Repeat(`{"a":`, maxNesting+1):                   "nests too deep",
	} {
		if !is([]byte(data)) {
			continue
		}
		_, err := tell([]byte(data))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", data, err, want)
		}
		if strings.Contains(want, "lacks") != errors.Is(err, record.ErrNotRecording) {
			t.Errorf("%q: %v is of the wrong sort", data, err)
		}
	}
	// One list that is in the file a million times would be a million entries.
	again := m{"segments": []any{}, "device_traces": []any{}}
	data := pickled(t, again)
	twice := bytes.Replace(data, []byte("]"), []byte("]\x94(h\x00h\x00e"), 1)
	if _, err := tell(twice); err == nil {
		t.Error("an entry is there twice")
	}
}

func TestNumerals(t *testing.T) {
	for data, want := range map[string]value{
		"K\x07":             {7, integer},
		"M\x01\x02":         {0x201, integer},
		"J\xff\xff\xff\xff": {math.MaxUint64, integer},
		"\x8a\x00":          {0, integer},
		"\x8a\x01\xff":      {math.MaxUint64, integer},
		"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\x7f\x00": {math.MaxInt64, integer},
		"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00": {math.MaxUint64, integer}, // PyTorch's line where it knows none
		"\x8b\x02\x00\x00\x00\x01\x02":                 {0x201, integer},
		"I42\n":                                        {42, integer},
		"I01\n":                                        {1, boolean},
		"L42L\n":                                       {42, integer},
		"G\x3f\xf0\x00\x00\x00\x00\x00\x00":            {math.Float64bits(1), real},
		"\x88":                                         {1, boolean},
		"\x89":                                         {0, boolean},
		"N":                                            {},
	} {
		_, got, err := unpickle(strings.NewReader(data + "."))
		if err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", data, got, err, want)
		}
	}
}

func TestPlain(t *testing.T) {
	for name, want := range map[string]string{
		"at::detail::empty_cuda(c10::ArrayRef<long>, bool)":                    "at::detail::empty_cuda",
		"at::TensorBase at::detail::_empty_generic<long>(c10::ArrayRef<long>)": "at::detail::_empty_generic<long>",
		"at::(anonymous namespace)::create_out(int)":                           "at::(anonymous namespace)::create_out",
		"f<(g)1>(int)":             "f<(g)1>",
		"main":                     "main",
		"":                         "",
		"x::operator()(int) const": "x::operator()(int) const",
	} {
		if got := plain(name); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

// FuzzSnapshot reads forged files. Each is read within the memory of scripts/fuzz.
func FuzzSnapshot(f *testing.F) {
	f.Add(pickled(f, two()))
	asJSON, err := json.Marshal(two())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(asJSON)
	f.Add(realFile(f, "small")[:32<<10])
	f.Add(zipped(f, realFile(f, "small")[:32<<10]))
	f.Fuzz(func(t *testing.T, data []byte) {
		if !is(data) {
			return
		}
		x, err := tell(data)
		if err == nil && x.trace == nil {
			t.Error("no error, and no trace")
		}
		for _, s := range x.stacks {
			for _, p := range s.Frames {
				if len(p.Location().Lines) != 1 {
					t.Error("a frame without a line")
				}
			}
		}
	})
}

// BenchmarkRead reads a real file with native stacks.
func BenchmarkRead(b *testing.B) {
	data := realFile(b, "forward")
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := tell(data); err != nil {
			b.Fatal(err)
		}
	}
}

func zipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// A file that gzip made of a snapshot is read as the snapshot. One that unpacks to far more than real ones do
// is cut, and what is no snapshot is refused.
func TestZipped(t *testing.T) {
	x, err := tell(zipped(t, realFile(t, "forward")))
	y, want := tell(realFile(t, "forward"))
	if err != nil || want != nil || len(x.tensors) == 0 || len(x.tensors) != len(y.tensors) || x.trace.Target != y.trace.Target {
		t.Errorf("%v, %v: %d tensors of %s", err, want, len(x.tensors), x.trace.Target)
	}
	large := append([]byte{opProto, 4}, bytes.Repeat([]byte("K\x010"), 64<<20)...) // a number, and away with it
	if _, err := tell(zipped(t, large)); err == nil || !strings.Contains(err.Error(), "ends early") {
		t.Errorf("a file that unpacks to %d bytes: %v", len(large), err)
	}
	for _, other := range []string{"", "a profile", "\x1f\x8b"} {
		if _, err := tell(zipped(t, []byte(other))); !errors.Is(err, record.ErrNotRecording) {
			t.Errorf("%q: %v", other, err)
		}
	}
	if _, err := tell([]byte("\x1f\x8bnone")); !errors.Is(err, record.ErrNotRecording) {
		t.Error(err)
	}
}
