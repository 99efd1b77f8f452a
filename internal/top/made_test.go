package top

import (
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

const mib = 1 << 20

// A made is a source whose Looks a test makes up: one after the other.
type made struct {
	looks []*live.Look
	next  int
	asked []live.Query
	err   error
}

func (m *made) Span() (time.Duration, []int64) { return 0, nil }

func (m *made) Look(q live.Query) (*live.Look, error) {
	m.asked = append(m.asked, q)
	if m.err != nil {
		return nil, m.err
	}
	l := m.looks[min(m.next, len(m.looks)-1)]
	m.next++
	return l, nil
}

// sized is livetest.Sized as a Look.
func sized(second int, name string, held ...int64) *live.Look {
	s, sites := livetest.Sized(second, name, held...)
	return &live.Look{Snapshot: s, Sites: sites}
}
