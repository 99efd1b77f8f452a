package top

import (
	"fmt"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

var began = time.Unix(1_700_000_000, 0).UTC()

// A made is a source whose Looks a test makes up: one after the other.
type made struct {
	looks []*Look
	next  int
	asked []Query
	err   error
}

func (m *made) Span() (time.Duration, []int64) { return 0, nil }

func (m *made) Look(q Query) (*Look, error) {
	m.asked = append(m.asked, q)
	if m.err != nil {
		return nil, m.err
	}
	l := m.looks[min(m.next, len(m.looks)-1)]
	m.next++
	return l, nil
}

// sized is a Look a second after another: of a process, what each of its stacks holds.
func sized(second int, name string, held ...int64) *Look {
	l := &Look{Snapshot: &snapshot.Snapshot{Meta: snapshot.Meta{Target: name, Start: began, Duration: time.Duration(second) * time.Second, Events: uint64(second * 100)}}}
	s := l.Snapshot
	p := snapshot.Process{PID: 7, Name: name}
	for i, bytes := range held {
		leaf := &snapshot.Location{Lines: []snapshot.Line{{Function: "cuMemAlloc_v2"}}}
		frame := &snapshot.Location{Address: 4096, Mapping: &snapshot.Mapping{Path: "/lib/" + name}, Lines: []snapshot.Line{{Function: fmt.Sprintf("%s_%d", name, i), File: "/src/" + name, Line: i + 1}}}
		s.Samples = append(s.Samples, snapshot.Sample{Stack: []*snapshot.Location{leaf, frame},
			Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "0", Owner: name, Process: name, PID: 7, Module: name},
			Values: snapshot.Values{InuseBytes: bytes, InuseObjects: 1, AllocBytes: 2 * bytes, AllocObjects: 2, PeakBytes: bytes}})
		l.Sites = append(l.Sites, ledger.SiteKey{Proc: event.Process{PID: 7, Start: 1}, Stack: uint64(i + 1), API: 1})
		p.Inuse += bytes
		p.Allocated += 2 * bytes
	}
	p.Peak = p.Inuse
	s.Processes = []snapshot.Process{p}
	s.Accounts = []snapshot.Account{{PID: 7, Process: name, GPU: "0", Total: p.Inuse + 5<<20, Known: true,
		Lines: []snapshot.AccountLine{{Name: "allocations", Bytes: p.Inuse}, {Name: "[allocated before attach]", Bytes: 5 << 20, Note: name}}}}
	s.GPUs = []snapshot.GPUMemory{{GPU: "0", Name: name, Total: 80 << 30, Used: 20 << 30, Processes: []snapshot.GPUProcess{{PID: 7}, {PID: 8}}}}
	s.Loss = []loss.Counter{{Name: "events_ring_full", Help: "events", Value: 3}, {Name: "none", Help: "nothing", Value: 0}}
	s.Notes = []string{"a note of " + name}
	return l
}
