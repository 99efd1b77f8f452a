package server

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/live"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/output/web"
)

// groupings are what processes are grouped by, "" for nothing: values of ?by, which are names
// of labels.
var groupings = []string{"", "user", "command", "pod", "container", "job", "service"}

// grouping returns the parameter by.
func (p params) grouping() (string, error) {
	by := p["by"]
	if !slices.Contains(groupings, by) {
		return "", badRequest("by is user, command, pod, container, job or service")
	}
	return by, nil
}

// groupingsOf returns those by which something is known of processes, and the chosen one.
func groupingsOf(processes []listed, chosen string) (out []option) {
	for _, name := range groupings[1:] {
		if name == chosen || slices.ContainsFunc(processes, func(x listed) bool { return valueOf(&x.Process, name) != "" }) {
			out = append(out, option{name, name})
		}
	}
	return out
}

// groupName returns the name of a process's group.
func groupName(x *live.Process, by string) string {
	if by == "" {
		return processName(x.Name, x.PID)
	}
	return web.Clean(cmp.Or(valueOf(x, by), "no "+by+" known"))
}

// A listed is a process in a table. Of one that is gone, or of a moment of the past, Held, GPUs
// and who it is are known.
type listed struct {
	live.Process
	peak  int64  // the most that it held in the period
	until string // when it held memory last, of one that is gone
	past  bool
}

// rows returns processes that are there now, and those that held memory in a period and are
// gone.
func rows(there []live.Process, period []holding, now time.Time) (out []listed) {
	type key struct {
		pid  int
		name string
	}
	at := map[key]int{}
	for i := range there {
		at[key{there[i].PID, web.Clean(there[i].Name)}] = len(out)
		out = append(out, listed{Process: there[i], peak: there[i].Held})
	}
	for _, x := range period {
		if i, lives := at[key{x.PID, x.Name}]; lives {
			out[i].peak = max(out[i].peak, x.Held)
			continue
		}
		gone := listed{Process: x.Process, peak: x.Held, until: moment(x.seen, now), past: true}
		gone.Held, gone.Exited = 0, true
		out = append(out, gone)
	}
	return out
}

// A groupView is the processes that have one value, and their sums. All are one group where
// nothing is grouped.
type groupView struct {
	Name      string
	Count     int
	Sum       figures
	Processes []processView
}

// groupsOf returns the processes by a label, those that hold most first, as do the groups.
// peaks are the most that groups held in the period. Processes beyond shownProcesses are in
// the sums alone, and more is how many they are.
func groupsOf(processes []listed, by string, peaks map[string]int64) (groups []groupView, more int) {
	type group struct {
		name string
		sum  listed
		all  []*listed
	}
	var found []*group
	named := map[string]*group{}
	for i := range processes {
		x, name := &processes[i], ""
		if by != "" {
			name = groupName(&x.Process, by)
		}
		g := named[name]
		if g == nil {
			g = &group{name: name, sum: listed{Process: live.Process{Known: true}, peak: peaks[name], past: true}}
			named[name], found = g, append(found, g)
		}
		g.all = append(g.all, x)
		s := &g.sum
		s.past = s.past && x.past
		s.Held, s.Inuse, s.Grown, s.Rate, s.Unexplained = s.Held+x.Held, s.Inuse+x.Inuse, s.Grown+x.Grown, s.Rate+x.Rate, s.Unexplained+x.Unexplained
		s.Failed, s.OutOfMemory, s.Known = s.Failed+x.Failed, s.OutOfMemory+x.OutOfMemory, s.Known && (x.Known || len(x.GPUs) == 0)
		for _, gpu := range x.GPUs {
			if !slices.Contains(s.GPUs, gpu) {
				s.GPUs = append(s.GPUs, gpu)
			}
		}
	}
	slices.SortStableFunc(found, func(a, b *group) int {
		return cmp.Or(cmp.Compare(b.sum.Held, a.sum.Held), cmp.Compare(b.sum.Inuse, a.sum.Inuse), cmp.Compare(b.sum.peak, a.sum.peak))
	})
	room := shownProcesses
	for _, g := range found {
		slices.Sort(g.sum.GPUs)
		g.sum.peak = max(g.sum.peak, g.sum.Held)
		shown := g.all[:min(len(g.all), room)]
		room -= len(shown)
		more += len(g.all) - len(shown)
		if len(shown) == 0 {
			continue
		}
		view := groupView{Name: g.name, Count: len(g.all), Sum: figuresOf(&g.sum)}
		for _, x := range shown {
			view.Processes = append(view.Processes, processViewOf(x))
		}
		groups = append(groups, view)
	}
	return groups, more
}

// valueOf returns what a process is grouped under.
func valueOf(x *live.Process, by string) string {
	i := slices.IndexFunc(snapshot.AllLabels[:], func(l snapshot.Label) bool { return l.Name == by })
	switch {
	case i < 0:
		return ""
	case by == "pod" && x.Pod != "":
		return x.Namespace + "/" + x.Pod
	}
	return snapshot.AllLabels[i].Get(&snapshot.Labels{Who: &x.Who})
}

func processViewOf(x *listed) processView {
	out := processView{PID: x.PID, Name: web.Clean(cmp.Or(x.Name, "?")), User: web.Clean(x.User), Workload: web.Clean(x.Home()), Command: web.Clean(x.Command), Figures: figuresOf(x)}
	switch {
	case x.until != "":
		out.Ended = "until " + x.until
	case x.Exited:
		out.Ended = "ended"
	}
	return out
}

func figuresOf(x *listed) figures {
	out := figures{GPUs: web.Clean(strings.Join(x.GPUs, ", ")), Held: bytefmt.Format(x.Held), Peak: some(x.peak)}
	if !x.Known && len(x.GPUs) > 0 {
		out.Held = "≥ " + out.Held
	}
	if x.past {
		return out
	}
	out.Inuse, out.Unexplained, out.Grown = bytefmt.Format(x.Inuse), some(x.Unexplained), someSigned(x.Grown)
	if x.Rate >= 1 {
		out.Rate = bytefmt.Format(int64(x.Rate)) + "/s"
	}
	if x.Failed > 0 {
		out.Failed = fmt.Sprintf("%d, %d for want of memory", x.Failed, x.OutOfMemory)
	}
	return out
}
