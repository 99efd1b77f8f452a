package alert

import (
	"cmp"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/agent/leaks"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// A Subject is what a rule is about. What is not of it is zero.
type Subject struct {
	GPU     string `json:"gpu,omitempty"` // label
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"` // comm
}

// String names it for people.
func (s Subject) String() string {
	switch {
	case s.PID != 0 && s.GPU != "":
		return fmt.Sprintf("process %d (%s) on GPU %s", s.PID, s.Process, s.GPU)
	case s.PID != 0:
		return fmt.Sprintf("process %d (%s)", s.PID, s.Process)
	}
	return "GPU " + s.GPU
}

// key is the same for one subject at any time: a process may change its name.
func (s Subject) key() Subject {
	if s.PID != 0 {
		s.Process = ""
	}
	return s
}

// maxName bounds what a program chooses, in bytes.
const maxName = 100

func name(s string) string { return render.Cut(s, maxName) }

// leakName is the quantity that is how much the leaking stacks of a process grew.
const leakName = "leak"

// A quantity is what a rule may be about.
type quantity struct {
	name string
	// of yields each subject of it, with the value, and the whole if there is one. A subject
	// may come several times: its values are added up.
	of func(*look, func(Subject, value))
}

// A look is what is known of a moment.
type look struct {
	*state.Totals
	leaks []leaks.Leak
}

type value struct {
	is, whole int64
	leak      *leaks.Leak // the largest of those that is adds up, nil for none
	leaks     int         // their number
}

var quantities = []quantity{
	{"gpu.used", func(t *look, yield func(Subject, value)) {
		for i := range t.GPUs {
			if g := &t.GPUs[i]; g.Total > 0 {
				yield(Subject{GPU: name(g.GPU)}, value{is: g.Used, whole: g.Total})
			}
		}
	}},
	{"process.live", func(t *look, yield func(Subject, value)) {
		of := processes(t.Totals)
		for i := range t.Uses {
			u := &t.Uses[i]
			if s, lives := of[u.PID]; lives {
				yield(s, value{is: u.Live, whole: capacity(t.Totals, u.GPU)})
			}
		}
	}},
	{"process.held", func(t *look, yield func(Subject, value)) {
		of := processes(t.Totals)
		for i := range t.Accounts {
			a := &t.Accounts[i]
			if s, lives := of[a.PID]; lives && a.Known {
				yield(s, value{is: a.Total, whole: capacity(t.Totals, a.GPU)})
			}
		}
	}},
	{leakName, func(t *look, yield func(Subject, value)) {
		of := processes(t.Totals)
		for _, s := range of {
			yield(s, value{})
		}
		for i := range t.leaks {
			l := &t.leaks[i]
			if s, lives := of[l.PID]; lives && l.Now && !l.Starting {
				yield(s, value{is: l.Growth, leak: l, leaks: 1})
			}
		}
	}},
}

// processes are the subjects of those that live, by PID.
func processes(t *state.Totals) map[int]Subject {
	out := map[int]Subject{}
	for i := range t.Processes {
		if p := &t.Processes[i]; !p.Exited {
			out[p.PID] = Subject{PID: p.PID, Process: name(p.Name)}
		}
	}
	return out
}

func capacity(t *state.Totals, gpu string) int64 {
	for i := range t.GPUs {
		if t.GPUs[i].GPU == gpu {
			return t.GPUs[i].Total
		}
	}
	return 0
}

// A measure is a subject and its value.
type measure struct {
	Subject
	value
}

// measures returns each subject once, in order.
func (q *quantity) measures(t *look) []measure {
	sums := map[Subject]value{}
	q.of(t, func(s Subject, v value) {
		old := sums[s]
		sums[s] = value{old.is + v.is, old.whole + v.whole, cmp.Or(old.leak, v.leak), old.leaks + v.leaks}
	})
	out := make([]measure, 0, len(sums))
	for s, v := range sums {
		out = append(out, measure{s, v})
	}
	sorting.Stable(out, func(a, b measure) int { return compare(a.Subject, b.Subject) })
	return out
}

func compare(a, b Subject) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Process, b.Process))
}
