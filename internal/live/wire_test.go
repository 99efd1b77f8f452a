package live

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"
)

// sent is a snapshot that went to another gpumemtrace.
func sent(t testing.TB, l *Snapshot) *Snapshot {
	t.Helper()
	var b bytes.Buffer
	if err := l.Write(&b); err != nil {
		t.Fatal(err)
	}
	out, err := ReadSnapshot(&b)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// What arrives is what was sent, of recordings of real programs, with the live
// allocations of a call site.
func TestWire(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine has nothing for the race detector")
	}
	for _, name := range []string{"fsdp", "jax", "ipc", "torch_expandable", "accelerate"} {
		r, err := OpenRecording("../../test/recordings/" + name + ".gmt")
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		end, _ := r.Span()
		l, err := r.Snapshot(Query{At: end * 3 / 4})
		if err != nil {
			t.Fatal(err)
		}
		most := 0
		for i := range l.Sites {
			if l.Snapshot.Samples[i].InuseObjects > l.Snapshot.Samples[most].InuseObjects {
				most = i
			}
		}
		l, err = r.Snapshot(Query{At: end * 3 / 4, Allocations: &l.Sites[most]})
		if err != nil {
			t.Fatal(err)
		}
		l.Cost = &Cost{CPU: time.Second, Memory: 5}
		n := len(l.Snapshot.Live)
		youngest := l.Snapshot.Live[n-1]
		if l.Youngest(max(n-1, 1)); l.Older+len(l.Snapshot.Live) != n || l.Snapshot.Live[len(l.Snapshot.Live)-1] != youngest {
			t.Errorf("%s: %d of %d allocations, and %d older", name, len(l.Snapshot.Live), n, l.Older)
		}
		got := sent(t, l)
		mappings := cmpopts.IgnoreFields(snapshot.Mapping{}, "HasLines") // which only profiles show
		if len(got.Snapshot.Live) == 0 {
			t.Errorf("%s: no live allocations", name)
		}
		if d := cmp.Diff(l, got, cmpopts.EquateEmpty(), mappings); d != "" {
			t.Errorf("%s: %.2000s", name, d)
		}
	}
}

// Names arrive as they are, but that JSON has another character for what is no UTF-8.
func TestWireNames(t *testing.T) {
	for _, name := range livetest.HostileNames {
		got := sent(t, sizedLook(1, name, 5, 6))
		l := sizedLook(1, string([]rune(name)), 5, 6)
		p, q := NewTracker().Add(l), NewTracker().Add(got)
		for i := range p.Stacks {
			if a, b := render.Plain(p.Stacks[i].Text()), render.Plain(q.Stacks[i].Text()); a != b {
				t.Errorf("%.100q arrives as %.100q", a, b)
			}
		}
		if a, b := render.Clean(p.Processes[0].Name), render.Clean(q.Processes[0].Name); a != b {
			t.Errorf("%.100q arrives as %.100q", a, b)
		}
	}
}

func TestParseSite(t *testing.T) {
	for _, k := range []ledger.SiteKey{{}, {Proc: event.Process{PID: 1<<32 - 1, Start: 1<<64 - 1}, Stack: 1<<64 - 1, API: 1<<16 - 1, Outer: 7, Kind: 255, Device: event.NoDevice, Ctx: 3}} {
		got, err := ParseSite(SiteText(&k))
		if err != nil || *got != k {
			t.Errorf("%+v, %v; want %+v", got, err, k)
		}
	}
	for _, text := range []string{"", "-", "1-1-1-1-1-1-1", "1-1-1-1-1-1-1-1-1", "1-1-1-1-1-1-1-1-", "1-1-1-10000-1-1-1-1", "01-1-1-1-1-1-1-1", "1-1-1-1-1-1-1-A", "+1-1-1-1-1-1-1-1", "1-1-1-1-1-1-1- 1"} {
		if got, err := ParseSite(text); err == nil {
			t.Errorf("%q: %+v", text, got)
		}
	}
}

// Whatever an address answers, nothing of it is believed to be there that is not.
func FuzzReadSnapshot(f *testing.F) {
	var b bytes.Buffer
	if err := sizedLook(1, "x", 5, 6).Write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(strings.Replace(b.String(), `"stack":[`, `"stack":[-1,`, 1)))
	f.Add([]byte(strings.Replace(b.String(), `"mapping":0`, `"mapping":9`, 1)))
	f.Add([]byte(`{"schema_version":3,"samples":[{"stack":[0],"labels":{},"values":{}}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		l, err := ReadSnapshot(bytes.NewReader(in))
		if err != nil {
			return
		}
		p := NewTracker().Add(l)
		p.Select(&Scope{}, "x", ByGrown, true)
		p.Document(-1).Write(io.Discard)
		sent(t, sent(t, l))
	})
}
