package alert

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// A Subject is what a rule is about. What is not of it is zero.
type Subject struct {
	GPU     string `json:"gpu,omitempty"` // label
	PID     int    `json:"pid,omitempty"`
	Process string `json:"process,omitempty"` // comm
	Owner   string `json:"owner,omitempty"`
	Cause   string `json:"cause,omitempty"` // of loss
}

// String names it for people.
func (s Subject) String() string {
	switch {
	case s.PID != 0 && s.GPU != "":
		return fmt.Sprintf("process %d (%s) on GPU %s", s.PID, s.Process, s.GPU)
	case s.PID != 0:
		return fmt.Sprintf("process %d (%s)", s.PID, s.Process)
	case s.GPU != "":
		return "GPU " + s.GPU
	case s.Cause != "":
		return "loss " + s.Cause
	case s.Owner == "":
		return "owner not known"
	}
	return "owner " + s.Owner
}

// maxName bounds what a program chooses, in bytes.
const maxName = 100

func name(s string) string { return render.Cut(s, maxName) }

// A quantity is what a rule may be about.
type quantity struct {
	name   string
	shares bool // of a whole, so that there are percentages
	counts bool // it is no number of bytes
	// of yields each subject of it, with the value, and the whole if there is one. A subject
	// may come several times: its values are added up.
	of func(*state.Totals, func(Subject, value))
}

type value struct{ is, whole int64 }

var quantities = []quantity{
	{name: "gpu.used", shares: true, of: ofGPUs(func(g *state.GPUTotals) (int64, bool) { return g.Used, true })},
	{name: "gpu.free", shares: true, of: ofGPUs(func(g *state.GPUTotals) (int64, bool) { return g.Free, true })},
	{name: "gpu.held", shares: true, of: ofGPUs(func(g *state.GPUTotals) (int64, bool) { return g.Held, g.Known })},
	{name: "residual", shares: true, of: ofGPUs(func(g *state.GPUTotals) (int64, bool) { return g.Residual, g.ResidualKnown })},
	{name: "process.live", shares: true, of: func(t *state.Totals, yield func(Subject, value)) {
		of := processes(t)
		for i := range t.Uses {
			u := &t.Uses[i]
			if s, lives := of[u.PID]; lives {
				yield(s, value{u.Live, capacity(t, u.GPU)})
			}
		}
	}},
	{name: "process.held", shares: true, of: func(t *state.Totals, yield func(Subject, value)) {
		of := processes(t)
		for i := range t.Accounts {
			a := &t.Accounts[i]
			if s, lives := of[a.PID]; lives && a.Known {
				yield(s, value{a.Total, capacity(t, a.GPU)})
			}
		}
	}},
	{name: "owner.live", of: func(t *state.Totals, yield func(Subject, value)) {
		for i := range t.Groups {
			g := &t.Groups[i]
			switch g.Kind.Class() {
			case event.ClassDevice, event.ClassDriver, event.ClassTensor:
				yield(Subject{Owner: name(g.Owner)}, value{is: g.LiveBytes})
			}
		}
	}},
	{name: "loss", counts: true, of: func(t *state.Totals, yield func(Subject, value)) {
		for _, c := range t.Loss {
			yield(Subject{Cause: name(c.Name)}, value{is: int64(min(c.Value, maxAmount))})
		}
	}},
}

// ofGPUs is a figure of each GPU whose memory NVML tells.
func ofGPUs(figure func(*state.GPUTotals) (int64, bool)) func(*state.Totals, func(Subject, value)) {
	return func(t *state.Totals, yield func(Subject, value)) {
		for i := range t.GPUs {
			g := &t.GPUs[i]
			if is, known := figure(g); known && g.Total > 0 {
				yield(Subject{GPU: name(g.GPU)}, value{is, g.Total})
			}
		}
	}
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
func (q *quantity) measures(t *state.Totals) []measure {
	sums := map[Subject]value{}
	q.of(t, func(s Subject, v value) {
		sums[s] = value{sums[s].is + v.is, sums[s].whole + v.whole}
	})
	out := make([]measure, 0, len(sums))
	for s, v := range sums {
		out = append(out, measure{s, v})
	}
	slices.SortFunc(out, func(a, b measure) int { return compare(a.Subject, b.Subject) })
	return out
}

func compare(a, b Subject) int {
	return cmp.Or(cmp.Compare(a.PID, b.PID), cmp.Compare(a.GPU, b.GPU), cmp.Compare(a.Process, b.Process), cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Cause, b.Cause))
}
