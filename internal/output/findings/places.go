package findings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// secondGPUs: a process has most of its memory on one GPU. On another it has a context and little else but
// what torch.load put there; or it has less there than on its own, and another process of its command has
// most of its memory there.
func secondGPUs(l *look, u *use) (out []Finding) {
	context, only := l.onlyContext(u, loaded)
	if context == nil {
		return out
	}
	i := slices.IndexFunc(l.uses, func(other *use) bool {
		return other.pid == u.pid && other.gpu != u.gpu && l.computes(other) && other.bytes > u.bytes
	})
	if i < 0 || u.bytes < leastBytes || !only && (2*u.bytes > l.uses[i].bytes || !l.others(u)) {
		return out
	}
	change := "If that line loads a checkpoint, pass map_location=\"cpu\". Otherwise name the process's own GPU there, or call torch.cuda.set_device(local_rank) at the start."
	switch {
	case l.jax(u.pid):
		only := "CUDA_VISIBLE_DEVICES set to its own alone"
		if _, err := strconv.ParseUint(l.uses[i].gpu, 10, 8); err == nil { // no part of a GPU, and no address
			only = "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=" + l.uses[i].gpu
		}
		change = fmt.Sprintf("JAX opens each GPU that it sees. Start the program with %s, which makes that its GPU 0, or with JAX_PLATFORMS=cpu if JAX needs none.", only)
	case line(context) == "":
		change = "Call torch.cuda.set_device(local_rank) before anything else uses CUDA."
	}
	out = append(out, Finding{
		Says:   fmt.Sprintf("%s (pid %d) works on GPU %s, but has opened GPU %s too: %s there, of which %s is CUDA's context%s.", u.process, u.pid, l.uses[i].gpu, u.gpu, bytefmt.Format(u.bytes), bytefmt.Format(l.contexts(u)), madeAt(line(context))),
		Bytes:  u.bytes,
		Change: change,
	})
	return out
}

// jax reports whether JAX took memory in a process.
func (l *look) jax(pid int) bool {
	return slices.ContainsFunc(l.peak.Samples, func(s snapshot.Sample) bool { return s.PID == pid && s.Owner == "jax" })
}

// contexts is how much of a use is contexts.
func (l *look) contexts(u *use) int64 {
	bytes, _ := l.sumOf(l.where(u, func(s *snapshot.Sample) bool { return s.Kind == contextKind }))
	return bytes
}

// others reports whether a use is on the GPU on which another process of the same command, or if commands were
// not recorded of the same name, has most of its memory: that is another rank.
func (l *look) others(u *use) bool {
	command := l.commands[u.pid]
	most := map[int]*use{}
	for _, x := range l.uses {
		if most[x.pid] == nil || x.bytes > most[x.pid].bytes {
			most[x.pid] = x
		}
	}
	for pid, x := range most {
		if pid != u.pid && x.gpu == u.gpu && l.commands[pid] == command && (command != "" || x.process == u.process) {
			return true
		}
	}
	return false
}

// computes reports whether a use has more than its context.
func (l *look) computes(u *use) bool {
	_, only := l.onlyContext(u, nil)
	return !only
}

// loaded reports whether torch.load took the memory: PyTorch keeps it when the tensors are freed.
func loaded(s *snapshot.Sample) bool {
	return stacks.Any(s.Stack, func(x *snapshot.Line) bool { return strings.HasSuffix(x.File, "/torch/serialization.py") })
}

// comesWith are the causes of what the driver takes beside a context when the first kernel is loaded.
var comesWith = []string{"code", "local memory"}

// onlyContext returns the largest context of a use, and whether nearly all of it is that, what comes with
// it, and what else may, if not nil.
func (l *look) onlyContext(u *use, with func(*snapshot.Sample) bool) (context *snapshot.Sample, only bool) {
	var rest int64
	for _, s := range u.samples {
		switch {
		case s.Kind == contextKind:
			if context == nil || l.held(s) > l.held(context) {
				context = s
			}
		case !slices.Contains(comesWith, snapshot.Cause(s)) && (with == nil || !with(s)):
			rest += l.held(s)
		}
	}
	return context, context != nil && rest <= u.bytes/10
}

// workers: several processes of the same command have a context and nothing else beside one that
// computes, which started before them.
func workers(l *look, main *use) (out []Finding) {
	if !l.computes(main) {
		return out
	}
	var idle []*use
	var bytes int64
	var made *snapshot.Sample
	for _, u := range l.uses {
		context, only := l.onlyContext(u, nil)
		if only && u.gpu == main.gpu && u.pid > main.pid && l.startedBy(u.pid, main.pid) && l.alone(u) {
			idle, bytes, made = append(idle, u), bytes+u.bytes, context
		}
	}
	if len(idle) == 0 || !matters(bytes, main.bytes) {
		return out
	}
	hold := "hold"
	if len(idle) == 1 {
		hold = "holds"
	}
	out = append(out, Finding{
		Says:   fmt.Sprintf("%s of %s (pid %d) %s a CUDA context on GPU %s and hardly anything else: %s%s.", bytefmt.Counted(len(idle), "worker"), main.process, main.pid, hold, main.gpu, bytefmt.Format(bytes), madeAt(line(made))),
		Bytes:  bytes,
		Change: "If they only load data, make no CUDA call in workers, not even set_device or pin_memory: let them return CPU tensors, and use DataLoader(pin_memory=True) and .to(device) in the main process. With spawn, put the program under if __name__ == \"__main__\".",
	})
	return out
}

// alone reports whether a process uses one GPU.
func (l *look) alone(u *use) bool {
	return !slices.ContainsFunc(l.uses, func(other *use) bool { return other.pid == u.pid && other.gpu != u.gpu })
}

// startedBy reports whether a process is another one's. If its parent is not known, or is a server that forks,
// that follows from what its command says: a fork has that of its parent. What multiprocessing starts is of
// the only other command that uses GPUs.
func (l *look) startedBy(pid, parent int) bool {
	if slices.ContainsFunc(l.peak.Processes, func(p snapshot.Process) bool { return p.PID == pid && p.Parent == parent }) {
		return true
	}
	own := l.commands[pid]
	if !strings.Contains(own, "multiprocessing") {
		return own != "" && own == l.commands[parent]
	}
	return !strings.Contains(l.commands[parent], "multiprocessing") && !slices.ContainsFunc(l.uses, func(u *use) bool {
		command := l.commands[u.pid]
		return command != l.commands[parent] && !strings.Contains(command, "multiprocessing")
	})
}

// orphaned is how long a process may take to end after its parent.
const orphaned = 10 * time.Second

// orphans: a process held memory when its parent, of the same program, ended, and still does.
func orphans(l *look) (out []Finding) {
	now := l.end.Meta.Start.Add(l.end.Meta.Duration)
	for i := range l.end.Processes {
		p := &l.end.Processes[i]
		since := now.Sub(p.ParentEnded)
		if p.Exited || p.ParentEnded.IsZero() || since < orphaned {
			continue
		}
		var bytes int64
		for j := range l.end.Samples {
			if s := &l.end.Samples[j]; s.PID == p.PID && snapshot.OnGPU(s.Kind) {
				bytes += s.InuseBytes
			}
		}
		if bytes >= leastBytes {
			out = append(out, Finding{
				Says: fmt.Sprintf("%s (pid %d) has outlived the process that started it (pid %d), which ended %v after the trace began: %v later it still holds %s.",
					p.Name, p.PID, p.Parent, p.ParentEnded.Sub(l.end.Meta.Start).Round(time.Second), since.Round(time.Second), bytefmt.Format(bytes)),
				Bytes:  bytes,
				Change: "If nothing needs it any more, end it. To prevent it, call prctl(PR_SET_PDEATHSIG, SIGTERM) in the child: it acts when the thread that started it ends. Or start it as Process(daemon=True), which may have no children and stays if the parent is killed.",
			})
		}
	}
	return out
}

// imports: memory was taken while a module was imported.
func imports(l *look, u *use) (out []Finding) {
	taken := l.where(u, func(s *snapshot.Sample) bool {
		return snapshot.Class(s.Kind) != event.ClassDriver.String() && stacks.Any(s.Stack, importing)
	})
	bytes, _ := l.sumOf(taken)
	if matters(bytes, u.bytes) && bytes >= u.bytes/100*50 {
		change := "Move the allocation into a function, so that only processes that need it have it."
		if l.jax(u.pid) {
			change = "JAX reserves this at its first use. Start with JAX_PLATFORMS=cpu if it needs no GPU, otherwise with a lower XLA_PYTHON_CLIENT_MEM_FRACTION, or XLA_PYTHON_CLIENT_PREALLOCATE=false, which may fragment."
		}
		out = append(out, Finding{
			Says:   fmt.Sprintf("The import%s takes %s of the GPU.", l.lines(taken)[0].at(), bytefmt.Format(bytes)),
			Bytes:  bytes,
			Change: change,
		})
	}
	return out
}

// importing reports whether a frame is of the import system of Python.
func importing(x *snapshot.Line) bool {
	return strings.HasPrefix(x.File, "<frozen importlib._bootstrap")
}
