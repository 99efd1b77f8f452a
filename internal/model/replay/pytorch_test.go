package replay

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/memoryviz"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

//go:embed testdata/memory_viz.py
var memoryViz string

// TestPyTorchReads: torch.cuda._memory_viz reads pickles of real recordings, and finds in
// them what the state says that processes have at addresses.
func TestPyTorchReads(t *testing.T) {
	torchtest.Need(t)
	dir := t.TempDir()
	type figures struct{ Segments, Active, Inactive int64 }
	want := map[string]figures{}
	args := []string{"-c", memoryViz}
	allocators := 0
	for name, path := range recordings(t) {
		s, err := Play(path, Options{At: End, Layout: true, Remember: 1000})
		if err != nil {
			t.Fatal(err)
		}
		half, err := Play(path, Options{At: s.Time().Sub(s.Start()) / 2, Layout: true, Remember: 1000})
		if err != nil {
			t.Fatal(err)
		}
		for moment, s := range map[string]*state.State{"end": s, "half": half} {
			snap := s.View(state.Want{Driver: true, Layout: true}).Snapshot()
			var b bytes.Buffer
			if err := memoryviz.Pickle(&b, snap); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(dir, name+"."+moment)
			if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
			args = append(args, file)
			var f figures
			for i := range snap.Layout.Segments {
				g := &snap.Layout.Segments[i]
				f.Segments++
				f.Inactive += int64(g.Size)
				for _, b := range g.Blocks {
					f.Active += int64(b.Size)
					f.Inactive -= int64(b.Size)
				}
				if g.Pool {
					allocators++
				}
			}
			want[file] = f
		}
	}
	if allocators == 0 {
		t.Error("no recording has a caching allocator's segments")
	}
	cmd := exec.Command(torchtest.Python, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]figures
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for file, f := range want {
		if g, ok := got[file]; !ok || g != f {
			t.Errorf("%s: PyTorch finds %+v, the state has %+v", filepath.Base(file), g, f)
		}
	}
}
