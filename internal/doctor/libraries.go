package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

type libraries struct {
	reports []probes.LibraryReport
	names   map[int]string // of processes
	unread  map[int]error  // processes whose mappings cannot be read
	ptrace  bool           // this process has CAP_SYS_PTRACE
	target  int            // the only process looked at, 0 for all
}

// readLibraries looks at one process, or at all for 0.
func readLibraries(target int, ptrace bool) libraries {
	pids := []int{target}
	if target == 0 {
		pids = slices.DeleteFunc(proc.All(), func(pid int) bool { return pid == os.Getpid() })
	}
	l := libraries{target: target, ptrace: ptrace, names: map[int]string{}}
	l.reports, l.unread = probes.Inspect(pids)
	for pid, err := range l.unread {
		if errors.Is(err, fs.ErrNotExist) {
			delete(l.unread, pid) // it ended, or never was: that is another check
		}
	}
	name := func(pid int) { l.names[pid] = proc.Comm(pid) }
	for pid := range l.unread {
		name(pid)
	}
	for _, r := range l.reports {
		for _, pid := range r.PIDs {
			name(pid)
		}
	}
	return l
}

// shown yields the libraries that a report is about: of one process, its own.
func (l libraries) shown(yield func(probes.LibraryReport) bool) {
	for _, r := range l.reports {
		if (l.target == 0 || len(r.PIDs) > 0) && !yield(r) {
			return
		}
	}
}

// required are the functions that every driver since CUDA 3.2 exports.
var required = []string{"cuMemAlloc_v2", "cuMemFree_v2"}

func checkLibraries(l libraries) []Check {
	g := group{name: "Libraries"}
	if len(l.unread) > 0 {
		fix := "run as root, or grant CAP_SYS_PTRACE"
		if l.ptrace {
			fix = "if one of them uses CUDA, find out what protects it, such as a security module"
		}
		if l.target != 0 {
			g.fail("mappings", fix, "%v", l.unread[l.target])
		} else {
			g.warn("mappings", fix, "cannot be read for %s: these processes are not traced", l.people(slices.Sorted(maps.Keys(l.unread))))
		}
	}
	used, seen := false, map[string]int{}
	for r := range l.shown {
		used = used || r.Level == probes.Driver && len(r.PIDs) > 0
		l.check(&g, r, seen)
	}
	switch {
	case used:
	case l.target != 0 && len(l.unread) == 0:
		g.warn("libcuda", "nothing, if the process is still starting: gpumemtrace waits until it uses libcuda", "the process does not use it yet")
	case l.target == 0:
		g.ok("libcuda in use", "no process whose mappings can be read uses it now")
	}
	return g.checks
}

// check judges one library. seen counts checks by name.
func (l libraries) check(g *group, r probes.LibraryReport, seen map[string]int) {
	name := map[probes.Level]string{probes.Driver: "libcuda", probes.Runtime: "libcudart", probes.Torch: "libc10"}[r.Level]
	if seen[name]++; seen[name] > 1 {
		name += " " + strconv.Itoa(seen[name])
	}
	text := l.describe(r)
	lacks := slices.DeleteFunc(slices.Clone(required), func(s string) bool { return slices.Contains(r.Found, s) })
	switch {
	case r.Err != nil && r.Level != probes.Driver:
		g.ok(name, "%s: cannot be read, and is not needed: %v", text, r.Err)
	case r.Err != nil:
		add := g.warn
		if l.target != 0 {
			add = g.fail
		}
		fix := "run as root, or grant CAP_SYS_PTRACE and CAP_CHECKPOINT_RESTORE"
		if errors.Is(r.Err, probes.ErrNoSymbols) {
			fix = "use a 64-bit program with NVIDIA's own libcuda"
		}
		add(name, fix, "%s: %v", text, r.Err)
	case r.Level == probes.Driver && len(lacks) > 0:
		g.warn(name, "use NVIDIA's own libcuda", "%s: lacks %s, which every driver has", text, strings.Join(lacks, ", "))
	case r.Level == probes.Torch:
		// Of several spellings of a name one is there.
		switch {
		case !slices.ContainsFunc(r.Found, probes.ReportsTensors):
			g.ok(name, "%s: reports when PyTorch runs out of memory but does not report tensors, so --tensors shows none", text)
		default:
			g.ok(name, "%s: reports tensors, and when PyTorch runs out of memory", text)
		}
	default:
		text += fmt.Sprintf(": %d of %d functions", len(r.Found), len(r.Found)+len(r.Missing))
		if len(r.Missing) > 0 {
			text += "; this version has no " + strings.Join(r.Missing, ", ")
		}
		if len(r.Unlisted) > 0 {
			g.warn(name, "use a newer gpumemtrace, if there is one", "%s; gpumemtrace does not know %s, which may allocate or free memory", text, some(r.Unlisted))
			return
		}
		g.ok(name, "%s", text)
	}
}

func (l libraries) describe(r probes.LibraryReport) string {
	var parts []string
	if r.Version != "" {
		parts = append(parts, "version "+r.Version)
	}
	if r.BuildID != "" {
		parts = append(parts, "build id "+r.BuildID)
	}
	switch {
	case len(r.PIDs) == 0:
		parts = append(parts, "installed")
	case l.target == 0:
		parts = append(parts, "used by "+l.people(r.PIDs))
	}
	if len(parts) == 0 {
		return r.Path
	}
	return r.Path + " (" + strings.Join(parts, ", ") + ")"
}

// maxShown bounds the names in one line.
const maxShown = 5

// some joins the first names, and says how many more there are.
func some(names []string) string {
	text := strings.Join(names[:min(len(names), maxShown)], ", ")
	if more := len(names) - maxShown; more > 0 {
		text += fmt.Sprintf(", %d more", more)
	}
	return text
}

// people names processes for people: "17 (python3), 23 (train)".
func (l libraries) people(pids []int) string {
	var out []string
	for _, pid := range pids {
		out = append(out, fmt.Sprintf("%d (%s)", pid, l.names[pid]))
	}
	return some(out)
}
