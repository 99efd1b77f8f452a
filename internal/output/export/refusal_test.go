package export

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// Who refused a request, and how much was free then, is said only where the recording tells it.
func TestRefusal(t *testing.T) {
	own := func(free int64) func(*snapshot.OutOfMemory) {
		return func(o *snapshot.OutOfMemory) { o.Calls, o.GPUs[0].Free = 0, free }
	}
	for name, c := range map[string]struct {
		change      func(*snapshot.OutOfMemory)
		want, limit string
	}{
		"a limit": {own(136 << 30), "The program's own limit refused it: no call of the driver failed for it, and 136 GiB of the GPU was free.",
			"The limit is below 13.0 GiB: the 7.00 GiB that PyTorch held, and this request."},
		"a limit, on a full GPU": {own(1 << 30), "It would not have fitted anyway: 1.00 GiB", "below 13.0 GiB"},
		"a limit, without NVML":  {func(o *snapshot.OutOfMemory) { own(0)(o); o.GPUs = nil }, "no call of the driver failed for it. How much of the GPU was free is not known.", "below 13.0 GiB"},
		"a small tensor":         {func(o *snapshot.OutOfMemory) { own(1 << 30)(o); o.Tensor = 512 }, "own limit", "below 7.02 GiB"},
		"of a memory pool":       {func(o *snapshot.OutOfMemory) { own(136 << 30)(o); o.Private = "1.0" }, "own limit did, or the allocator of the memory pool", ""},
		"the driver":             {func(*snapshot.OutOfMemory) {}, "The driver refused a piece of 4.00 GiB of it: 1.00 GiB of the GPU's 141 GiB was free.", ""},
		"a segment":              {func(o *snapshot.OutOfMemory) { o.Tensor = 1 << 30 }, "The driver refused a segment of 4.00 GiB for it: 1.00 GiB", ""},
		"nothing free":           {func(o *snapshot.OutOfMemory) { o.GPUs[0].Free = 0 }, ": nothing of the GPU's 141 GiB was free.", ""},
		"not asked":              {func(o *snapshot.OutOfMemory) { o.GPUs = nil }, "The driver refused a piece of 4.00 GiB of it. How much of the GPU was free is not known.", ""},
		"recovered":              {func(o *snapshot.OutOfMemory) { o.Recovered = true }, "It recovered", ""},
		// NVML was asked when the process had given 4 GiB back already.
		"given back since": {func(o *snapshot.OutOfMemory) {
			o.GPUs[0].Free = 5 << 30
			o.Snapshot.Accounts[0].Total, o.Snapshot.Accounts[0].Known = 13<<30, true
		}, ": 1.00 GiB of the GPU's 141 GiB was free.", ""},
	} {
		o := failure()
		o.Snapshot.Accounts = []snapshot.Account{{PID: o.PID, GPU: o.GPU}}
		c.change(o)
		for _, said := range [][2]string{{refusal(o), c.want}, {limit(o), c.limit}} {
			if !strings.Contains(said[0], said[1]) || (said[0] == "") != (said[1] == "") {
				t.Errorf("%s: %q, want %q", name, said[0], said[1])
			}
		}
	}
}

// failuresOf returns the requests of a real recording that failed for want of memory.
func failuresOf(t *testing.T, recording string) (all []*snapshot.OutOfMemory) {
	t.Helper()
	opts := replay.Options{At: replay.End, OutOfMemory: func(in *state.Incident) { all = append(all, in.OutOfMemory(state.Want{Driver: true})) }}
	if _, err := replay.Play("../../../test/recordings/"+recording+".gmt", opts); err != nil {
		t.Fatal(err)
	}
	return all
}

// Programs that set a limit, and others: real recordings tell them apart.
func TestRefusalOfRealRuns(t *testing.T) {
	for recording, want := range map[string][]string{
		"out_of_memory":        {"The driver refused a piece of 20.0 MiB of it: nothing of the GPU's 140 GiB was free.", "The program's own limit refused it: no call of the driver failed for it, and 136 GiB of the GPU was free."},
		"allocator/fragmented": {"The program's own limit refused it: no call of the driver failed for it, and 76.3 GiB of the GPU was free."},
		"torch_native":         {"The driver refused it. How much of the GPU was free is not known."},
		"torch_expandable":     {"The driver refused a piece of 20.0 MiB of it. How much of the GPU was free is not known."},
	} {
		var got []string
		for _, o := range failuresOf(t, recording) {
			got = append(got, refusal(o))
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", recording, got, want)
		}
	}
}

// A page shows no row and no stack twice, nor what was lost.
func TestFailuresOnce(t *testing.T) {
	for _, recording := range []string{"out_of_memory", "allocator/fragmented", "torch_native", "torch_expandable"} {
		var b strings.Builder
		all := failuresOf(t, recording)
		if err := OutOfMemories(&b, "run.gmt", all); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "\nLost\n"); n > 1 {
			t.Errorf("%s: losses are shown %d times", recording, n)
		}
		for i, page := range strings.Split(b.String(), "Out of GPU memory: ")[1:] {
			_, tables, _ := strings.Cut(page, "\n\n")
			seen := map[string]bool{}
			lines := strings.Split(tables, "\n")
			for j, line := range lines {
				if stack, ok := strings.CutPrefix(line, "      "); ok && strings.Contains(stack, " < ") {
					row := fmt.Sprint(strings.Fields(lines[j-1])[4:], stack) // without its figures
					if seen[row] {
						t.Errorf("%s, page %d: %q is there twice", recording, i, row)
					}
					seen[row] = true
				}
			}
		}
	}
}
