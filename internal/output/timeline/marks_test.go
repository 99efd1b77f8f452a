package timeline

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/replay"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

// python is a call stack of Python functions, in pairs of name and file.
func python(id event.Process, number uint64, frames ...[2]string) *record.Stack {
	s := &record.Stack{ID: number, Process: id}
	for i, f := range frames {
		l := &snapshot.Location{Lines: []snapshot.Line{{Function: f[0], File: f[1], Line: 7}}}
		s.Frames = append(s.Frames, record.NewPlace(number<<8+uint64(i), 0, l, nil))
	}
	return s
}

// trains returns the records of a process that trains: an optimizer's step is called so
// many times, a millisecond apart.
func trains(id event.Process, from time.Duration, calls int) (out []record.Record) {
	const optim = "/usr/lib/python3/site-packages/torch/optim/"
	main := [2]string{"<module>", "/home/user/train.py"}
	forward, step := uint64(id.PID)<<8+1, uint64(id.PID)<<8+2
	out = append(out, &record.Process{Process: id, Target: true, Name: "prog", FromStart: true}, python(id, forward, main),
		python(id, step, [2]string{"step", optim + "adam.py"}, [2]string{"Optimizer.profile_hook_step.<locals>.wrapper", optim + "optimizer.py"}, main))
	for i := range calls {
		for j, stack := range []uint64{forward, step} {
			now := from + time.Duration(i)*time.Millisecond + time.Duration(j)*100*time.Microsecond
			addr := uint64(i+1)<<20 + uint64(j)<<12
			out = append(out, &event.Event{Op: event.OpTensorAlloc, Kind: event.KindTensor, Proc: id, TID: id.PID, Time: at(now), Addr: addr, Size: 100, Stack: stack, Handle: event.NoTotal, Part: event.NoTotal},
				&event.Event{Op: event.OpTensorFree, Proc: id, TID: id.PID, Time: at(now + 10*time.Microsecond), Addr: addr, Size: 100, Handle: event.NoTotal, Part: event.NoTotal})
		}
	}
	return append(out, momentAt(from+time.Duration(calls)*time.Millisecond))
}

// marked returns the numbers of the steps that a page marks, by what it calls their process.
func marked(t *testing.T, p *page) map[string][]uint64 {
	t.Helper()
	out := map[string][]uint64{}
	for _, m := range p.meta.Marks {
		if m.Kind == "step" {
			var number uint64
			var of string
			if _, err := fmt.Sscanf(m.Text, "step %d of %s", &number, &of); err != nil || number != m.Step {
				t.Fatalf("%+v: %v", m, err)
			}
			out[of+m.Text[len(m.Text)-4:]] = append(out[of+m.Text[len(m.Text)-4:]], number)
		}
	}
	return out
}

// Every step of a recording is marked, of ended processes too, or where that is too many
// one of so many, and the page says how many there were.
func TestStepsAreMarked(t *testing.T) {
	const calls = 3001
	other := event.Process{PID: 9, Start: 2 * event.StartUnit}
	records := append([]record.Record{traceOf()}, trains(other, 0, 41)...)
	records = append(records, &event.Event{Op: event.OpExit, Proc: other, TID: other.PID, Time: at(50 * time.Millisecond)})
	path := recordtest.File(t, append(records, trains(proc, 100*time.Millisecond, calls)...)...)
	s, err := replay.Play(path, replay.Options{At: replay.End})
	if err != nil {
		t.Fatal(err)
	}
	known := s.View(state.Want{Steps: true}).Snapshot().Steps
	last := known[slices.IndexFunc(known, func(x snapshot.Steps) bool { return x.PID == int(proc.PID) })].Last
	for most, every := range map[int]uint64{0: 1, 3100: 1, 2000: 2, 1500: 10, 299: 20, 5: 1000} {
		o := whole
		o.steps = most
		html, p, _ := written(t, path, o)
		want := map[string][]uint64{}
		left := uint64(0)
		for name, n := range map[string]uint64{"prog (9)": 40, "prog (7)": calls - 1} {
			for i := range n {
				if (i+1)%every == 0 {
					want[name] = append(want[name], i+1)
				} else {
					left++
				}
			}
		}
		got := marked(t, p)
		for _, name := range []string{"prog (7)", "prog (9)"} {
			if !slices.Equal(got[name], want[name]) {
				t.Errorf("%d marks at most: %s has %d steps, want %d, each %dth", most, name, len(got[name]), len(want[name]), every)
			}
		}
		i := slices.IndexFunc(p.meta.Loss, func(x lossMeta) bool { return x.Name == "timeline_steps_thinned" })
		if left == 0 != (i < 0) || i >= 0 && p.meta.Loss[i].Value != left {
			t.Errorf("%d marks at most: %d left out, said: %+v", most, left, p.meta.Loss)
		}
		for _, m := range p.meta.Marks {
			for j := range last {
				if uint64(last[j].Number) == m.Step && m.Text == fmt.Sprintf("step %d of prog (7)", m.Step) {
					if want := uint64(last[j].Begin.Sub(start)); m.Time != want {
						t.Fatalf("step %d at %d, the recording says %d", m.Step, m.Time, want)
					}
				}
			}
		}
		if most == 1500 {
			b := open(t, html, 900, 900)
			b.Ask("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
			b.Wants("notes", b.Text("notes"), "there were 3040 training steps", "a multiple of 10", "timeline_steps_thinned")
			b.Quiet()
		}
	}
}

// Where a recording has a gap, the steps that ended in it are marked too, and none twice;
// those of before a recording's beginning are not.
func TestStepsOfAGap(t *testing.T) {
	const calls, head, each = 61, 4, 4 // records: what comes before the calls, and of one
	const cut, again = 21, 41
	all := append([]record.Record{traceOf()}, trains(proc, 0, calls)...)
	s := state.New()
	for _, r := range all[:head+each*again] {
		s.Apply(r)
	}
	s.Apply(momentAt(again * time.Millisecond))
	rest := []record.Record{&record.Cut{Time: at(again * time.Millisecond)}}
	s.Keyframe(func(r record.Record) {
		if e, ok := r.(*event.Event); ok {
			copied := *e
			r = &copied
		}
		rest = append(rest, r)
	})
	rest = append(append(rest, momentAt(again*time.Millisecond)), all[head+each*again:]...)
	gap := append(append(slices.Clone(all[:head+each*cut]), momentAt(cut*time.Millisecond)), rest...)
	for name, x := range map[string]struct {
		records []record.Record
		first   uint64
	}{"in it": {gap, 1}, "at its beginning": {rest, again}} {
		_, p, _ := written(t, recordtest.File(t, x.records...), whole)
		var want []uint64
		for n := x.first; n < calls; n++ {
			want = append(want, n)
		}
		if got := marked(t, p)["prog (7)"]; !slices.Equal(got, want) {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}

// A mark says who refused a request that failed for want of memory.
func TestFailuresAreMarked(t *testing.T) {
	_, p, _ := written(t, "../../../test/recordings/out_of_memory.gmt", whole)
	var got []string
	for _, m := range p.meta.Marks {
		if m.Kind == "oom" {
			got = append(got, m.Text)
		}
	}
	want := []string{"out of memory: 400 GiB asked for by cuMemCreate", "refused by PyTorch itself: 20.0 GiB asked for"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a recording's failures were comes first, the first one whole, and leads to its moment. The
// chart has a line for what the GPU has, and a legend of it.
func TestFailuresComeFirst(t *testing.T) {
	o := whole
	o.Failures = func() []Passage {
		return []Passage{
			{Title: "asked for 20.0 GiB", Says: []string{"What would help: <b class=hacked>less"}, At: 6634404682},
			{Title: "asked for 400 GiB", Says: []string{"nothing was free"}, At: 2464969000, Again: 384e6, GPU: "0"},
		}
	}
	html, _, _ := written(t, "../../../test/recordings/out_of_memory.gmt", o)
	b := open(t, html, 1300, 900)
	seen := func() string { return b.Ask("document.getElementById('refused').innerText") }
	b.Wants("the first", seen(), "asked for 20.0 GiB", "What would help: <b class=hacked>less", "asked for 400 GiB")
	if strings.Contains(seen(), "nothing was free") || b.Ask("document.querySelectorAll('.hacked').length") != "0" {
		t.Errorf("it says %q", seen())
	}
	b.Ask("document.querySelector('#refused button').click()")
	b.Wants("its moment", b.Text("moment")+b.Text("command"), "Held at 6.634405 s: 3.51 GiB", "--at 6.634404682s")
	b.Wants("the legend", b.Text("legend"), "the GPU has 140 GiB", "a request that was refused")
	b.TabTo("chart")
	b.Keys("N")
	b.Wants("the mark before", b.Text("here"), "Refused again: memory had been given back.")
	// Other recordings were not asked how much the GPU has.
	html, _, _ = written(t, "../../../test/recordings/profiler.gmt", whole)
	other := open(t, html, 1300, 900)
	if strings.Contains(other.Text("legend"), "the GPU has") || other.Ask("document.getElementById('refused').checkVisibility()") != "false" {
		t.Errorf("it says %q", other.Text("legend"))
	}
	b.Quiet()
}
