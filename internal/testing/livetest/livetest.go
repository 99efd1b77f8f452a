// Package livetest makes up what tests of the live view look at.
package livetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/output/export"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// Began is when the traces of Sized began.
var Began = time.Unix(1_700_000_000, 0).UTC()

// HostileNames are names that a process may choose to disturb a terminal.
var HostileNames = []string{
	"\x1b[2J\x1b[31mred\x1b]0;title\a", "a\nb\r\tc\x00\x7f", "\x9b31m\u009b31m", "bad\xff\xfe utf8",
	strings.Repeat("x", 10_000), strings.Repeat("界", 10_000), "e" + strings.Repeat("\u0301", 10_000),
	"👨‍👩‍👧‍👦 family 🇩🇪🇫🇷 👍🏽 ❤️ ☝🏿", "각\u1100\u1161\u11a8\ud7b0", "नमस्ते क्ष\u0e33\u0e01\u0e38", "rtl\u202e\u2067gnp.exe", "שלום عالم",
	"का" + strings.Repeat("\u0903", 500), "\U0001100d\u0d4e\u0d4e\u0915", "ᄀ" + strings.Repeat("ᅡ", 300), "\u200b\u2060\ufeff\u00ad", "<b>&amp;'\"`$(x)", "\u115f\u1160\u3164\uffa0", "", " ", "…", "▕█▏",
}

// Sized returns a snapshot of one process at a second of a trace, with a call site for each
// of the sizes that its stacks hold.
func Sized(second int, name string, held ...int64) (*snapshot.Snapshot, []ledger.SiteKey) {
	s := &snapshot.Snapshot{Meta: snapshot.Meta{Target: name, Start: Began, Duration: time.Duration(second) * time.Second, Events: uint64(second * 100)}}
	var sites []ledger.SiteKey
	p := snapshot.Process{PID: 7, Name: name}
	for i, bytes := range held {
		leaf := &snapshot.Location{Lines: []snapshot.Line{{Function: "cuMemAlloc_v2"}}}
		frame := &snapshot.Location{Address: 4096, Mapping: &snapshot.Mapping{Path: "/lib/" + name}, Lines: []snapshot.Line{{Function: fmt.Sprintf("%s_%d", name, i), File: "/src/" + name, Line: i + 1}}}
		s.Samples = append(s.Samples, snapshot.Sample{Stack: []*snapshot.Location{leaf, frame},
			Labels: snapshot.Labels{Kind: "device", API: "cuMemAlloc_v2", GPU: "0", Owner: name, Process: name, PID: 7, Module: name},
			Values: snapshot.Values{InuseBytes: bytes, InuseObjects: 1, AllocBytes: 2 * bytes, AllocObjects: 2, PeakBytes: bytes}})
		sites = append(sites, ledger.SiteKey{Proc: event.Process{PID: 7, Start: 1}, Stack: uint64(i + 1), API: 1})
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
	return s, sites
}

// A Document is what top --json prints. N is live.Now, which this package cannot import.
type Document[N any] struct {
	*snapshot.Snapshot
	Now N
}

// Read reads a document.
func Read[N any](t testing.TB, text string) (d Document[N]) {
	t.Helper()
	var err error
	if d.Snapshot, err = export.ReadJSON(strings.NewReader(text), &d.Now); err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return d
}

// A Session is a state in place of a running trace.
type Session struct{ *state.State }

// Done returns a channel that is never closed.
func (s Session) Done() <-chan struct{} { return nil }

// Million returns a state of a million live allocations of ten thousand call sites.
func Million(b *testing.B) Session {
	const live = 1_000_000
	job := &recordtest.Training{Stacks: 5000, Depth: 40, Live: 2 * live, Pieces: 2 * live}
	s := state.New()
	job.Begin(s.Apply)
	for n := 0; n < live; {
		r := job.Next()
		if e, ok := r.(*event.Event); ok && (e.Op == event.OpAlloc || e.Op == event.OpHandleCreate) {
			n++
		}
		s.Apply(r)
	}
	s.Apply(&record.Moment{Time: s.Now(), Drained: true})
	if sites := s.Size().Sites; sites != 10_000 {
		b.Fatal(sites)
	}
	return Session{s}
}
