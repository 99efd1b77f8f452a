package timeline

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// whole plays all of a recording.
var whole = Options{Play: replay.Options{At: replay.End}}

func written(t *testing.T, path string, o Options) ([]byte, *page, *state.State) {
	t.Helper()
	var b bytes.Buffer
	s, _, err := Write(&b, path, o)
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), readPage(t, b.Bytes()), s
}

func recordings(t *testing.T) []string {
	t.Helper()
	all, err := filepath.Glob("../../../test/recordings/*.gmt")
	if err != nil || len(all) < 10 {
		t.Fatal(all, err)
	}
	return all
}

// What the page has of a moment is what the recording shows then, to the byte: of each
// process what it holds on each GPU, and of that what each owner does; and what it holds
// of other memory.
func TestFigures(t *testing.T) {
	for _, path := range recordings(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".gmt"), func(t *testing.T) {
			_, p, end := written(t, path, whole)
			if !p.meta.Exact || len(p.instants) < 10 {
				t.Fatalf("%d instants of %d changes", len(p.instants), p.meta.Changes)
			}
			compared := 0
			for part := range 26 {
				x := p.instants[(len(p.instants)-1)*part/25]
				at := time.Duration(x.time)
				if end.Start().Add(at).After(end.Time()) {
					t.Fatalf("the page has a moment at %v, after the end", at)
				}
				s, err := replay.Play(path, replay.Options{At: at})
				if err != nil {
					t.Fatal(err)
				}
				compared += compare(t, p, s, x.time)
			}
			if compared < 3 {
				t.Errorf("only %d totals compared", compared)
			}
		})
	}
}

// compare returns how many totals it compared at a time of the page.
func compare(t *testing.T, p *page, s *state.State, at uint64) int {
	t.Helper()
	snap := s.View(state.Want{Driver: true}).Snapshot()
	states := p.at(at)
	compared, differs := difference(p, snap, states[len(states)-1])
	if len(differs) > 0 {
		t.Errorf("%v (one of %d states): %s", time.Duration(at), len(states), strings.Join(differs, "; "))
	}
	return compared
}

func difference(p *page, snap *snapshot.Snapshot, held []int64) (compared int, differs []string) {
	pidOf := func(pid int) string { return fmt.Sprint("(", pid, ")") }
	exited, known := map[string]bool{}, map[string]bool{}
	for i := range snap.Processes {
		exited[pidOf(snap.Processes[i].PID)] = snap.Processes[i].Exited
	}
	want, got := map[string]int64{}, map[string]int64{}
	for i := range snap.Accounts {
		a := &snap.Accounts[i]
		pid := pidOf(a.PID)
		if known[pid] = a.Known; a.Known && !exited[pid] {
			want[pid] += a.Total
			want[pid+" GPU "+a.GPU] += a.Total
			compared++
		}
	}
	for i := range snap.Samples {
		x := &snap.Samples[i]
		if pid := pidOf(x.PID); !exited[pid] && (!snapshot.OnGPU(x.Kind) || known[pid]) {
			want[fmt.Sprintf("%s of %s on GPU: %v", pid, x.Owner, snapshot.OnGPU(x.Kind))] += x.InuseBytes
		}
	}
	r := &p.meta.Rows
	for row, bytes := range held {
		process := p.text(r.Process[row])
		pid := process[strings.LastIndex(process, "("):]
		place := p.meta.Places[r.Place[row]]
		if exited[pid] || place.GPU && !known[pid] {
			continue
		}
		got[fmt.Sprintf("%s of %s on GPU: %v", pid, p.text(r.Owner[row]), place.GPU)] += bytes
		if place.GPU {
			got[pid] += bytes
			got[pid+" "+place.Name] += bytes
		}
	}
	for what := range got {
		want[what] += 0
	}
	for _, what := range slices.Sorted(maps.Keys(want)) {
		if got[what] != want[what] && !strings.HasSuffix(what, unknownGPU) {
			differs = append(differs, fmt.Sprintf("%s: %d bytes, the recording says %d", what, got[what], want[what]))
		}
	}
	return compared, differs
}

// Where memory lay at a moment is where the recording shows it then: the same tensors at
// the same addresses, and as many bytes of segments. Where there were too many to keep
// them all, that is so at the moments of which the map is known.
func TestPlaces(t *testing.T) {
	for _, c := range []struct {
		name  string
		lives int
	}{{"profiler", 0}, {"torch_expandable", 0}, {"pools", 0}, {"out_of_memory", 0}, {"nccl", 0}, {"profiler", 700}} {
		t.Run(fmt.Sprint(c.name, c.lives), func(t *testing.T) {
			path := "../../../test/recordings/" + c.name + ".gmt"
			o := whole
			o.lives = c.lives
			_, p, end := written(t, path, o)
			if p.meta.MapExact != (c.lives == 0) || c.lives > 0 && (len(p.lives) > c.lives || len(p.moments) < 2) {
				t.Fatalf("%d lives, %d moments, exact: %v", len(p.lives), len(p.moments), p.meta.MapExact)
			}
			last := end.Time().Sub(end.Start())
			tensors, compared := 0, 0
			for part := range 40 {
				s, err := replay.Play(path, replay.Options{At: last * time.Duration(part+1) / 41, Layout: true})
				if err != nil {
					t.Fatal(err)
				}
				now := uint64(s.Time().Sub(s.Start()))
				if now < p.until {
					// The map is of a moment: nothing may have changed since.
					if i, _ := slices.BinarySearch(p.moments, now+1); i == 0 || changed(p, p.moments[i-1], now) {
						continue
					}
				}
				if slices.ContainsFunc(p.lives, func(l pageLife) bool { return l.begin == now || l.end == now }) {
					continue // what came to be known later of this moment is there
				}
				compared++
				tensors += places(t, p, s, now)
			}
			if compared < 3 || tensors == 0 && (c.name == "profiler" || c.name == "pools") {
				t.Errorf("%d moments, %d tensors compared", compared, tensors)
			}
		})
	}
}

// changed tells whether anything did after a time, until another.
func changed(p *page, after, until uint64) bool {
	return slices.ContainsFunc(p.instants, func(x pageInstant) bool { return x.time > after && x.time <= until })
}

func places(t *testing.T, p *page, s *state.State, now uint64) (tensors int) {
	t.Helper()
	got, want := map[[2]uint64]int{}, map[[2]uint64]int{}
	var reserved, held uint64
	for _, l := range p.lives {
		switch {
		case l.begin > now || l.end <= now:
		case l.tensor:
			got[[2]uint64{l.from, l.size}]++
		default:
			reserved += l.size
		}
	}
	layout := s.View(state.Want{Layout: true}).Snapshot().Layout
	for i := range layout.Segments {
		x := &layout.Segments[i]
		held += x.Size
		for _, b := range x.Blocks {
			if x.Pool {
				want[[2]uint64{b.Address, b.Size}]++
				tensors++
			}
		}
	}
	if held != reserved || !maps.Equal(got, want) {
		t.Errorf("at %d: %d bytes in segments and %d tensors, the recording has %d and %d", now, reserved, len(got), held, len(want))
	}
	return tensors
}

// What is live is told again where a recording has a gap: that is no change.
func TestKeyframe(t *testing.T) {
	begins := func() []record.Record {
		return []record.Record{traceOf(), &record.Process{Process: proc, Target: true, Name: "prog"},
			alloc(proc, 10*time.Millisecond, 1, 1<<20, 100), alloc(proc, 20*time.Millisecond, 1, 2<<20, 50), momentAt(30 * time.Millisecond)}
	}
	again := append(append([]record.Record{&record.Cut{Time: at(30 * time.Millisecond)}}, begins()...),
		alloc(proc, 40*time.Millisecond, 1, 3<<20, 1), free(proc, 50*time.Millisecond, 1<<20), momentAt(60*time.Millisecond))
	for name, records := range map[string][]record.Record{"whole": append(begins(), again...), "begins with it": again} {
		_, p, _ := written(t, recordtest.File(t, records...), whole)
		totals := p.totals(0)
		for i, x := range p.instants {
			if x.time+at(0) > at(25*time.Millisecond) && totals[i] < 51 {
				t.Errorf("%s: %d at %d", name, totals[i], x.time)
			}
		}
		if totals[len(totals)-1] != 51 {
			t.Errorf("%s: %v", name, totals)
		}
		live := 0
		for _, l := range p.lives {
			if l.end == never {
				live += int(l.size)
			}
		}
		if live != 51 {
			t.Errorf("%s: %d bytes lie somewhere", name, live)
		}
	}
}

// Where all changes would make too large a file, there are fewer, and the peaks are there.
func TestFileIsBounded(t *testing.T) {
	path := "../../../test/recordings/profiler.gmt"
	all, exact, _ := written(t, path, whole)
	for _, most := range []int{70_000, 60_000} {
		o := whole
		o.packed = most
		html, p, _ := written(t, path, o)
		size := p.packed["times"] + p.packed["rows"] + p.packed["bytes"]
		if size > max(most-p.packed["meta"]-p.packed["lives"], most/4) || len(html) >= len(all) || p.meta.Exact || p.meta.Bucket < 2 || p.meta.Instants != len(p.instants) || len(p.instants) < 50 {
			t.Errorf("at most %d: a page of %d bytes with %v packed, before %d with %v, %d instants of %d, exact: %v", most, len(html), p.packed, len(all), exact.packed, len(p.instants), p.meta.Changes, p.meta.Exact)
		}
		for i, place := range exact.meta.Places {
			j := slices.Index(p.meta.Places, place)
			if want, got := slices.Max(exact.totals(i)), slices.Max(p.totals(j)); got != want {
				t.Errorf("at most %d: %s has its peak at %d, want %d", most, place.Name, got, want)
			}
		}
	}
}

type full struct{ left int }

func (f *full) Write(b []byte) (int, error) {
	if f.left -= len(b); f.left < 0 {
		return 0, fmt.Errorf("no space left")
	}
	return len(b), nil
}

// What cannot be written is an error, and so is a moment that is not there.
func TestErrors(t *testing.T) {
	for _, left := range []int{0, 100_000, 180_000} {
		if _, _, err := Write(&full{left}, "../../../test/recordings/profiler.gmt", whole); err == nil || !strings.Contains(err.Error(), "no space left") {
			t.Error(left, err)
		}
	}
	if _, _, err := Write(&bytes.Buffer{}, "../../../test/recordings/profiler.gmt", Options{Play: replay.Options{At: time.Hour}}); err == nil || !strings.Contains(err.Error(), "it ends at") {
		t.Error(err)
	}
}

// The same recording gives the same bytes.
func TestDeterministic(t *testing.T) {
	var first []byte
	for range 3 {
		html, _, _ := written(t, "../../../test/recordings/fsdp.gmt", whole)
		if first == nil {
			first = html
		}
		if !bytes.Equal(first, html) {
			t.Fatal("other bytes")
		}
	}
}
