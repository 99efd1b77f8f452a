package doctor

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// leftovers are breakpoints in processes that no running tracer accounts for.
type leftovers struct {
	found     map[int][]probes.Leftover // by process
	names     map[int]string            // of processes
	accounted bool                      // see probes.Leftovers
}

// readLeftovers looks at one process, or at all for 0.
func readLeftovers(target int) leftovers {
	pids := []int{target}
	if target == 0 {
		pids = slices.DeleteFunc(proc.All(), func(pid int) bool { return pid == os.Getpid() })
	}
	l := leftovers{found: map[int][]probes.Leftover{}, names: map[int]string{}}
	found, accounted := probes.Leftovers(pids)
	l.accounted = accounted
	for _, f := range found {
		l.found[f.PID] = append(l.found[f.PID], f)
		l.names[f.PID] = proc.Comm(f.PID)
	}
	return l
}

func checkLeftovers(l leftovers) []Check {
	g := group{name: "Breakpoints"}
	const name = "left behind"
	if len(l.found) == 0 {
		g.ok(name, "none: no process has a breakpoint at a probed function that belongs to no running tracer")
		return g.checks
	}
	what := "breakpoints that a killed tracer left behind"
	fix := "the programs continue to work, but each call of these functions takes a microsecond longer; the next trace removes the breakpoints: sudo gpumemtrace -a -d 1s -o -"
	if !l.accounted {
		what = "breakpoints left behind, or the probes of a tracer that is running"
		fix = "run doctor as root, or grant CAP_SYS_ADMIN: the kernel then lists all probes"
	}
	left, debugged := map[int][]probes.Leftover{}, map[int][]probes.Leftover{}
	for pid, found := range l.found {
		if found[0].Debugged {
			debugged[pid] = found
		} else {
			left[pid] = found
		}
	}
	if len(left) > 0 {
		g.warn(name, fix, "%s: %s", what, l.list(left))
	}
	if len(debugged) > 0 {
		g.warn("of a debugger", "remove the debugger's breakpoints from these functions before a trace: removed during a trace they take its probes away, and the end of a trace can take them away",
			"processes with a debugger have breakpoints at probed functions: %s", l.list(debugged))
	}
	return g.checks
}

// list names processes and their functions.
func (l *leftovers) list(found map[int][]probes.Leftover) string {
	var processes []string
	pids := slices.Sorted(maps.Keys(found))
	for _, pid := range pids[:min(len(pids), maxShown)] {
		processes = append(processes, fmt.Sprintf("%d (%s): %s", pid, l.names[pid], functions(found[pid])))
	}
	if more := len(pids) - maxShown; more > 0 {
		processes = append(processes, fmt.Sprintf("and %d more processes", more))
	}
	return strings.Join(processes, "; ")
}

// functions names those that have a breakpoint.
func functions(found []probes.Leftover) string {
	var names []string
	for _, f := range found {
		if !slices.Contains(names, f.Function) {
			names = append(names, f.Function)
		}
	}
	return some(names)
}
