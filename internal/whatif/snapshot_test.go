package whatif

import (
	"cmp"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	_ "github.com/gpumemtrace/gpumemtrace/internal/source/torchsnapshot" // which Collect reads
	"github.com/gpumemtrace/gpumemtrace/internal/whatif/allocator"
)

// A made is what a test's allocator did, as a snapshot has it.
type made struct {
	*allocator.Allocator
	segments []map[string]any
	steps    []map[string]any
	live     map[uint64]map[string]any // blocks by address
	blocks   []*allocator.Block
	keys     []map[string]any // of blocks: what their steps say
	settings map[string]any
}

// allocate allocates a tensor on a stream, and from a private pool.
func (x *made) allocate(asked uint64, stream, private int) {
	segments, reserved := x.Segments, x.Reserved
	b := x.Allocate(asked, uint8(stream), uint8(private))
	at := map[string]any{"addr": b.Address, "stream": stream * 16, "pool_id": [2]int{0, private}, "frames": []any{}}
	step := func(action string, size uint64) map[string]any {
		out := map[string]any{"action": action, "size": size, "time_us": 1000 + len(x.steps)}
		maps.Copy(out, at)
		return out
	}
	if x.Segments > segments {
		size := x.Reserved - reserved
		kind := "large"
		if size == 2<<20 {
			kind = "small"
		}
		x.segments = append(x.segments, map[string]any{"device": 0, "address": b.Address, "total_size": size, "stream": stream * 16, "segment_type": kind, "segment_pool_id": [2]int{0, private}})
		x.steps = append(x.steps, step("segment_alloc", size))
	}
	x.steps = append(x.steps, step("alloc", asked))
	x.blocks, x.keys = append(x.blocks, b), append(x.keys, step("free_completed", asked))
	x.live[b.Address] = map[string]any{"address": b.Address, "size": b.Size, "requested_size": asked, "state": "active_allocated", "frames": []any{}}
}

// free frees a tensor.
func (x *made) free(i int) {
	x.keys[i]["time_us"] = 1000 + len(x.steps)
	x.steps = append(x.steps, x.keys[i])
	delete(x.live, x.blocks[i].Address)
	x.Free(x.blocks[i])
	x.blocks = append(x.blocks[:i], x.blocks[i+1:]...)
	x.keys = append(x.keys[:i], x.keys[i+1:]...)
}

// file returns the snapshot, of whose history the first steps are missing.
func (x *made) file(t *testing.T, missing int) string {
	t.Helper()
	for _, s := range x.segments {
		from, size := s["address"].(uint64), s["total_size"].(uint64)
		var all []any
		at := from
		for at < from+size {
			b, ok := x.live[at]
			if !ok {
				end := from + size
				for a := range x.live {
					if a > at && a < end {
						end = a
					}
				}
				b = map[string]any{"address": at, "size": end - at, "requested_size": 0, "state": "inactive", "frames": []any{}}
			}
			all = append(all, b)
			at += b["size"].(uint64)
		}
		s["blocks"] = all
	}
	data, err := json.Marshal(map[string]any{
		"segments": x.segments, "device_traces": []any{x.steps[missing:]},
		"allocator_settings": x.settings, "external_annotations": []any{},
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "made.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// retold returns what PyTorch's own recorder would have written about a recorded run, but for the first steps.
// It has the stream of each step, and a private pool of the segments alone that are there at the end.
func retold(t *testing.T, name string, missing int) string {
	t.Helper()
	x := recording(t, name)
	x.Check(allocator.Settings{})
	x.refine()
	var events []event.Event
	if err := read(filepath.Join("../../test/recordings", name), func(r record.Record) error {
		if e, ok := r.(*event.Event); ok {
			events = append(events, *e)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(events, func(a, b event.Event) int { return cmp.Compare(a.Time, b.Time) })
	out := &made{live: map[uint64]map[string]any{}}
	memory := map[uint64]uint64{} // sizes by address, of libraries too
	step := func(action string, time, at, size uint64, stream any) {
		out.steps = append(out.steps, map[string]any{"action": action, "addr": at, "size": size, "stream": stream, "time_us": time / 1000, "frames": []any{}})
	}
	segment := func(at uint64) int {
		return slices.IndexFunc(out.segments, func(s map[string]any) bool { return at-s["address"].(uint64) < s["total_size"].(uint64) })
	}
	requests := slices.DeleteFunc(slices.Clone(x.Requests), func(q allocator.Request) bool { return q.Op != allocator.Make })
	for _, e := range events {
		in := segment(e.Addr)
		switch {
		case e.Op == event.OpAlloc && e.Kind == event.KindDevice:
			memory[e.Addr] = e.Size
		case e.Op == event.OpFree && in >= 0:
			step("segment_free", e.Time, e.Addr, memory[e.Addr], out.segments[in]["stream"])
			out.segments = slices.Delete(out.segments, in, in+1)
			delete(memory, e.Addr)
		case e.Op == event.OpTensorAlloc:
			q := requests[0]
			requests = requests[1:]
			if in < 0 {
				at, kind := e.Addr, "large" // a new segment's first tensor is at its beginning
				if memory[at] == 2<<20 {
					kind = "small"
				}
				out.segments = append(out.segments, map[string]any{"device": 0, "address": at, "total_size": memory[at], "segment_type": kind, "stream": q.Stream, "segment_pool_id": [2]uint8{q.Private, 0}})
				step("segment_alloc", e.Time, at, memory[at], q.Stream)
			}
			asked := uint64(q.Units) * unit
			step("alloc", e.Time, e.Addr, asked, q.Stream)
			out.live[e.Addr] = map[string]any{"address": e.Addr, "size": e.Size, "requested_size": asked, "state": "active_allocated", "frames": []any{}}
		case e.Op == event.OpTensorFree:
			step("free_completed", e.Time, e.Addr, out.live[e.Addr]["requested_size"].(uint64), out.segments[in]["stream"])
			delete(out.live, e.Addr)
		}
	}
	return out.file(t, missing)
}

// A history of PyTorch's has no private pools. Of those that ended before the file was written nothing is
// known, but that their segments served no other requests.
func TestPoolsOfSnapshots(t *testing.T) {
	of := Predict(recording(t, "allocator/pools.gmt"), Options{})
	for missing, pools := range map[int]int{0: 3, 100: 3, 250: 1} {
		runs, err := Collect(retold(t, "allocator/pools.gmt", missing))
		if err != nil || len(runs) != 1 {
			t.Fatalf("%d runs, %v", len(runs), err)
		}
		p := Predict(runs[0], Options{})
		if p.Same != p.Tensors || p.Pools != pools || p.Streams != 3 || p.Rows[0].Peak != of.Rows[0].Peak || len(p.Rows) != len(of.Rows) {
			t.Errorf("without %d steps: %d of %d tensors at their addresses, %d streams, %d private pools: %s", missing, p.Same, p.Tensors, p.Streams, p.Pools, p.Reason)
		}
		for i := 1; i < len(p.Rows) && missing == 0; i++ {
			if r, o := p.Rows[i], of.Rows[i]; r.Peak < o.Low || r.Peak > o.High {
				t.Errorf("%s: peak %d, of the recording %d to %d", r.Setting, r.Peak, o.Low, o.High)
			}
		}
	}
}

// TestSnapshots makes snapshots by the allocator, whose history begins somewhere, with streams and
// private pools, and checks that each tensor comes to lie where it lay.
func TestSnapshots(t *testing.T) {
	divisions := map[string]any{}
	for i := range 16 {
		divisions[strconv.Itoa(1<<i)] = 4
	}
	owns := []struct {
		text     string
		settings map[string]any
	}{
		{"", map[string]any{"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": -1}}, {"", nil},
		{"roundup_power2_divisions:4", map[string]any{"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:4", "roundup_power2_divisions": divisions}},
		{"max_split_size_mb:21", map[string]any{"PYTORCH_CUDA_ALLOC_CONF": "", "max_split_size": 21 << 20}},
	}
	sizes := []uint64{1, 512, 3000, 1 << 20, 1<<20 + 1, 3<<20 + 77, 9 << 20, 10 << 20, 33<<20 + 5}
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 7))
		own := owns[seed%uint64(len(owns))]
		s, err := ParseSetting(own.text)
		if err != nil && own.text != "" {
			t.Fatal(err)
		}
		x := &made{Allocator: allocator.New(s.Settings), live: map[uint64]map[string]any{}, settings: own.settings}
		x.Limit = 1 << 40
		streams, pools := 1+r.IntN(3), 1+r.IntN(2)
		for range 400 {
			if len(x.blocks) > 0 && r.IntN(100) < 48 {
				x.free(r.IntN(len(x.blocks)))
			} else {
				x.allocate(sizes[r.IntN(len(sizes))]+uint64(r.IntN(700)), r.IntN(streams), r.IntN(pools))
			}
		}
		missing := 0
		if seed%5 > 0 {
			missing = r.IntN(len(x.steps) / 2)
		}
		made := 0
		for _, s := range x.steps[missing:] {
			if s["action"] == "alloc" {
				made++
			}
		}
		runs, err := Collect(x.file(t, missing))
		if err != nil || len(runs) != 1 {
			t.Fatalf("seed %d: %d runs, %v", seed, len(runs), err)
		}
		p := Predict(runs[0], Options{})
		if p.Same != p.Tensors || p.Tensors != made || p.Reason != "" || p.Rows[0].Peak != x.Reserved {
			t.Errorf("seed %d: %d of %d tensors (%d made) at their addresses, %d streams, peak %d of %d: %s", seed, p.Same, p.Tensors, made, p.Streams, p.Rows[0].Peak, x.Reserved, p.Reason)
		}
		if again := runs[0].Play(p.own.Settings, -1); again.Peak != x.Reserved {
			t.Errorf("seed %d: played again, %d bytes are reserved, want %d", seed, again.Peak, x.Reserved)
		}
	}
}
