package top

import (
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
)

const mib = 1 << 20

// A made is a source whose snapshots a test makes up: one after the other.
type made struct {
	looks []*live.Snapshot
	next  int
	asked []live.Query
	err   error
}

func (m *made) Span() (time.Duration, []int64) { return 0, nil }

func (m *made) Snapshot(q live.Query) (*live.Snapshot, error) {
	m.asked = append(m.asked, q)
	if m.err != nil {
		return nil, m.err
	}
	l := m.looks[min(m.next, len(m.looks)-1)]
	m.next++
	return l, nil
}

// sized is livetest.Sized as a snapshot.
func sized(second int, name string, held ...int64) *live.Snapshot {
	s, sites := livetest.Sized(second, name, held...)
	return &live.Snapshot{Snapshot: s, Sites: sites}
}

// What is wrong comes first, once.
func TestWhatIsWrong(t *testing.T) {
	var b strings.Builder
	if err := Text(&b, live.NewTracker().Add(&live.Snapshot{Snapshot: snapshottest.Driver()}), 5, 200, false); err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(b.String(), "What is wrong: serve (pid 20) works on GPU 0, but has opened GPU 1 too: 442 MiB there")
	if !found || strings.Contains(before, "GPUs\n") || strings.Count(b.String(), "What is wrong") != 1 {
		t.Errorf("it says\n%s", b.String())
	}
}
