package replay

import (
	"os"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/recordtest"
)

func spanOf(t *testing.T, path string) (Span, *state.State) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	r, err := record.NewReader(f, info.Size())
	if err != nil {
		t.Fatal(err)
	}
	x, s, err := Measure(r, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return x, s
}

// At no other moment of a recording do all processes together hold more than at its peak, nor
// as much with more in tensors.
func TestPeak(t *testing.T) {
	for name, path := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			x, _ := spanOf(t, path)
			sum := func(s *state.State) (all state.Held) {
				for id := range s.Living {
					h := s.Held(id)
					all.Total, all.Allocated, all.Tensors = all.Total+h.Total, all.Allocated+h.Allocated, all.Tensors+h.Tensors
				}
				return all
			}
			peak, err := Play(path, Options{At: x.Peak})
			if err != nil {
				t.Fatal(err)
			}
			want, moments := sum(peak), 0
			if s, err := Play(path, Options{At: x.Most}); err != nil || sum(s).Tensors != x.Tensors || x.Tensors < want.Tensors {
				t.Errorf("%v: tensors hold %d at %v, want %d, %d at the peak", err, sum(s).Tensors, x.Most, x.Tensors, want.Tensors)
			}
			if _, err := Play(path, Options{At: End, Moment: func(s *state.State) {
				moments++
				h := sum(s)
				if h.Tensors > x.Tensors {
					t.Errorf("tensors hold %d at %v, more than %d at %v", h.Tensors, s.Time().Sub(s.Start()), x.Tensors, x.Most)
				}
				if want.Compare(h) < 0 {
					t.Errorf("%+v at the peak at %v, %+v at %v", want, x.Peak, h, s.Time().Sub(s.Start()))
				}
			}}); err != nil {
				t.Fatal(err)
			}
			if want.Total == 0 || moments < 10 {
				t.Errorf("%+v at the peak, %d moments", want, moments)
			}
		})
	}
}

// Of a peak that lasts, the moment is that at which most was in tensors; a process that has
// ended holds nothing; and what is repeated after a gap is no peak, and neither is
// what no moment of the recording shows.
func TestPeakMoment(t *testing.T) {
	const second = time.Second
	sized := func(after time.Duration, id event.Process, addr, size uint64) *event.Event {
		e := alloc(after, addr)
		e.Proc, e.Size = id, size
		return e
	}
	free := func(after time.Duration, addr uint64) *event.Event {
		return &event.Event{Op: event.OpFree, Time: at(after), Proc: proc, TID: 7, API: 1, Addr: addr}
	}
	other := event.Process{PID: 8, Start: event.StartUnit}
	exit := &event.Event{Op: event.OpExit, Time: at(3 * second), Proc: other}
	for name, c := range map[string]struct {
		records []record.Record
		want    time.Duration
	}{
		"nothing":       {[]record.Record{moment(second)}, second},
		"the first":     {[]record.Record{sized(second, proc, 16, 5), free(2*second, 16), sized(3*second, proc, 16, 5), moment(4 * second)}, second},
		"the higher":    {[]record.Record{sized(second, proc, 16, 5), free(2*second, 16), sized(3*second, proc, 16, 6), moment(4 * second)}, 3 * second},
		"together":      {[]record.Record{sized(second, proc, 16, 5), sized(2*second, other, 32, 5), free(3*second, 16), sized(4*second, proc, 16, 1), moment(5 * second)}, 2 * second},
		"one has ended": {[]record.Record{sized(second, proc, 16, 5), sized(2*second, other, 32, 5), exit, sized(4*second, proc, 48, 4), moment(5 * second)}, 2 * second},
		"after a gap": {[]record.Record{sized(second, proc, 16, 5), moment(second), &record.Cut{Time: at(3 * second)}, traceOf(),
			sized(second, proc, 16, 5), sized(2*second, proc, 32, 5), moment(3 * second), sized(4*second, proc, 48, 1), moment(5 * second)}, 4 * second},
		"events after a later moment": {[]record.Record{moment(3 * second), sized(second, proc, 16, 9), free(2*second, 16), sized(4*second, proc, 16, 5), moment(5 * second)}, 4 * second},
		"in a gap":                    {[]record.Record{&record.Cut{Time: at(3 * second)}, traceOf(), sized(second, proc, 16, 5), moment(3 * second), moment(5 * second)}, 3 * second},
	} {
		path := recordtest.File(t, append([]record.Record{traceOf(), moment(0)}, c.records...)...)
		if x, _ := spanOf(t, path); x.Peak != c.want {
			t.Errorf("%s: the peak is at %v, want %v", name, x.Peak, c.want)
		}
	}
}

// Memory grows from its first byte to the last change that adds to it, in tensors or beside them.
func TestGrew(t *testing.T) {
	const second = time.Second
	tensor := alloc(4*second, 32)
	tensor.Op, tensor.Kind = event.OpTensorAlloc, event.KindTensor
	path := recordtest.File(t, traceOf(), moment(second), alloc(2*second, 16), moment(3*second), tensor, moment(5*second),
		&event.Event{Op: event.OpFree, Time: at(6 * second), Proc: proc, TID: 7, API: 1, Addr: 16}, moment(7*second))
	if x, _ := spanOf(t, path); x.First != 2*second || x.Grew != 4*second {
		t.Errorf("from %v to %v", x.First, x.Grew)
	}
	if x, _ := spanOf(t, recordtest.File(t, traceOf(), moment(second))); x.First != 0 || x.Grew != second {
		t.Errorf("nothing grew from %v to %v", x.First, x.Grew)
	}
}

// What tensors were for shows in how they end: with the categories of the recording's end, the
// largest tensors of the backward pass are temporary at the peak too, and no gradients.
func TestCategoriesOfTheEnd(t *testing.T) {
	path := recordings(t)["profiler"]
	x, end := spanOf(t, path)
	peak, err := Play(path, Options{At: x.Peak})
	if err != nil {
		t.Fatal(err)
	}
	of := func() map[string]int64 {
		sums := map[string]int64{}
		for _, s := range peak.View(state.Want{}).Snapshot().Samples {
			if s.Kind == "tensor" {
				sums[s.Category] += s.InuseBytes
			}
		}
		return sums
	}
	then := of()
	peak.LearnFrom(end)
	later := of()
	if then["gradient"] < 700<<20 || later["gradient"] != 512 || later["temporary"] < 700<<20 {
		t.Errorf("at the moment %v, by the end %v", then, later)
	}
	var a, b int64
	for _, n := range then {
		a += n
	}
	for _, n := range later {
		b += n
	}
	if a != b {
		t.Errorf("%d bytes in tensors, %d by the end", a, b)
	}
}

// A recording that lacks its beginning has a peak, also if nothing changes in it, and if
// nobody holds anything.
func TestPeakWithoutBeginning(t *testing.T) {
	for name, held := range map[string][]record.Record{"memory": {alloc(time.Second, 16)}, "nothing": nil} {
		records := append([]record.Record{&record.Cut{Time: at(3 * time.Second)}, traceOf(), &record.Process{Process: proc, Target: true}}, held...)
		path := recordtest.File(t, append(records, moment(3*time.Second), moment(5*time.Second))...)
		x, _ := spanOf(t, path)
		if _, err := Play(path, Options{At: x.Peak}); err != nil {
			t.Errorf("%s: the peak at %v: %v", name, x.Peak, err)
		}
	}
}

// On which GPU a process's memory is, is known once it was read. With what the recording's end
// knows, no memory is on an unknown GPU at an earlier moment.
func TestGPUsOfTheEnd(t *testing.T) {
	const path = "../../../test/recordings/allocator/fragmented.gmt"
	x, end := spanOf(t, path)
	learned := 0
	for i := range 40 {
		s, err := Play(path, Options{At: x.End * time.Duration(i) / 40})
		if err != nil {
			t.Fatal(err)
		}
		before := unknown(s)
		s.LearnFrom(end)
		if after := unknown(s); after != 0 {
			t.Errorf("%d bytes are on an unknown GPU, %d without the end", after, before)
		}
		if before != 0 {
			learned++
		}
	}
	if learned == 0 {
		t.Error("no moment had anything to learn")
	}
}

// At every moment, one before the first event too, a recording shows the target and the names
// that its end knows.
func TestNamesOfTheEnd(t *testing.T) {
	for name, path := range recordings(t) {
		x, end := spanOf(t, path)
		names := map[int]string{}
		all := end.View(state.Want{}).Snapshot()
		for _, p := range all.Processes {
			names[p.PID] = p.Name
		}
		for i := range 10 {
			s, err := Play(path, Options{At: x.End * time.Duration(i) / 10, Later: end})
			if err != nil {
				t.Fatal(err)
			}
			now := s.View(state.Want{}).Snapshot()
			if now.Meta.Target != all.Meta.Target || now.Meta.Target == "" {
				t.Errorf("%s: the target is %q, and %q at the end", name, now.Meta.Target, all.Meta.Target)
			}
			for _, p := range now.Processes {
				if p.Name == "" && names[p.PID] != "" {
					t.Errorf("%s: %d has no name, and is %q at the end", name, p.PID, names[p.PID])
				}
			}
		}
	}
}

// unknown returns the bytes on GPUs that are not known.
func unknown(s *state.State) (sum int64) {
	for _, x := range s.View(state.Want{Driver: true}).Snapshot().Samples {
		if x.GPU == "unknown" {
			sum += x.InuseBytes
		}
	}
	return sum
}
