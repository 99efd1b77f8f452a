package export

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

func stepped() *snapshot.Snapshot {
	s := snapshottest.Tensors()
	x := snapshot.Steps{PID: 30, Process: "python3", GPU: "0", Begun: true, Unsure: 2, Over: 73, Gained: 75 << 20, Grown: 73 << 20}
	x.Grew = []snapshot.Growth{{Bytes: 70 << 20, Sample: &s.Samples[2]}, {Bytes: 5 << 20, Sample: &s.Samples[1]}}
	m := snapshot.Moved{AllocBytes: 900 << 20, AllocObjects: 1035, FreedBytes: 899 << 20, FreedObjects: 1034, PeakBytes: 3 << 30, InuseBytes: 1 << 30}
	for n := range int64(1500) {
		x.Seen++
		x.Total.Sum(&m)
		if n >= 500 {
			x.Last = append(x.Last, snapshot.Step{Number: n + 1, Begin: snapshottest.Start.Add(time.Duration(n) * 18 * time.Millisecond), Took: 17_912_345, Moved: m})
		}
	}
	once := snapshot.Steps{PID: 31, Process: "x\x1b[2J", GPU: "1", Begun: true}
	s.Steps = []snapshot.Steps{x, once, {PID: 32, Process: "serve"}}
	return s
}

// What is made once is no leak; what each late step leaves behind is.
func TestStepsVerdict(t *testing.T) {
	steps := func(nets ...int64) (all []snapshot.Step) {
		for i, net := range nets {
			all = append(all, snapshot.Step{Number: int64(i + 1), Moved: snapshot.Moved{AllocBytes: 100 << 20, FreedBytes: 100<<20 - net}})
		}
		return all
	}
	const mib = 1 << 20
	for want, nets := range map[string][]int64{
		"": {5 * mib, 5 * mib, 5 * mib},
		"Nothing leaks from step to step: steps 3 to 5 freed what they allocated, or more.":               {346 * mib, 0, 0, 0, 0},
		"Nothing leaks from step to step: steps 3 to 4 freed what they allocated, or more.":               {346 * mib, 0, 3 * mib, -4 * mib},
		"Memory grows: each of steps 3 to 5 allocated more than it freed, on average by 2.00 MiB a step.": {346 * mib, 0, mib, 2 * mib, 3 * mib},
		"It grew by 5.00 MiB over steps 3 to 5, but not in each step.":                                    {0, 0, 5 * mib, 0, 0},
	} {
		if got := verdict(steps(nets...)); got != want {
			t.Errorf("%v: %q, want %q", nets, got, want)
		}
	}
}

func TestSteps(t *testing.T) {
	page := func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return StepsReport(w, s, Options{Top: 3}) }
	snapshottest.Golden(t, "report/steps.txt", []byte(write(t, page, stepped(), Options{})))
	snapshottest.Golden(t, "report/steps_none.txt", []byte(write(t, page, snapshottest.Tensors(), Options{})))
	s := stepped()
	s.Steps[0].Last = s.Steps[0].Last[:2]
	rows := func(w io.Writer, s *snapshot.Snapshot, _ Options) error { return StepsRows(s).CSV(w) }
	snapshottest.Golden(t, "report/steps.csv", []byte(write(t, rows, s, Options{})))
	if n := strings.Count(write(t, rows, stepped(), Options{}), "\n"); n != 1001 {
		t.Errorf("%d rows, want all that are kept", n)
	}
	full := errors.New("disk full")
	if err := StepsReport(limitedWriter{full}, s, Options{}); !errors.Is(err, full) {
		t.Errorf("page: %v", err)
	}
	if err := StepsRows(s).CSV(limitedWriter{full}); !errors.Is(err, full) {
		t.Errorf("rows: %v", err)
	}
}
