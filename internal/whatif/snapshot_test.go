package whatif

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"

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
