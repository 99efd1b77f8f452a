package export

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// A report of a stretch of a recording says what each process allocated and freed in it:
// what was there before and came since, and is there no more.
func TestBetween(t *testing.T) {
	tensor := func(pid int, alloc, inuse, peak int64) snapshot.Sample {
		return snapshot.Sample{Labels: snapshot.Labels{Kind: "tensor", PID: pid}, Values: snapshot.Values{AllocBytes: alloc, InuseBytes: inuse, PeakBytes: peak}}
	}
	before := &snapshot.Snapshot{
		Meta:      snapshot.Meta{Duration: 3 * time.Second},
		Processes: []snapshot.Process{{PID: 1, Name: "a", Inuse: 1 << 20}, {PID: 2, Name: "b", Inuse: 4 << 20, Exited: true}},
		Samples:   []snapshot.Sample{tensor(1, 9<<20, 1<<19, 0), tensor(1, 9<<20, 1<<19, 0)},
	}
	after := &snapshot.Snapshot{
		Meta:      snapshot.Meta{Duration: 5 * time.Second, Target: "x"},
		Processes: []snapshot.Process{{PID: 1, Name: "a", Inuse: 2 << 20, Allocated: 7 << 20, Peak: 8 << 20}, {PID: 3, Name: "idle"}},
		Samples:   []snapshot.Sample{tensor(1, 10<<20, 3<<20, 5<<20)},
	}
	var b strings.Builder
	if err := Report(&b, after, Options{Before: before}); err != nil {
		t.Fatal(err)
	}
	page, _, _ := strings.Cut(b.String(), "\nWhat for")
	want := `From 3s to 5s after the trace began
  PROCESS  PID  WHAT           BEFORE  ALLOCATED     FREED     AFTER   AT PEAK
  a          1  allocations  1.00 MiB   7.00 MiB  6.00 MiB  2.00 MiB  8.00 MiB
  a          1  tensors      1.00 MiB   10.0 MiB  8.00 MiB  3.00 MiB  5.00 MiB
`
	if !strings.HasSuffix(page, want) {
		t.Errorf("got\n%swant\n%s", page, want)
	}
}
