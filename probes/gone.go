package probes

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// A probe is gone if somebody wrote over it in the memory of a process: a debugger that removes a
// breakpoint from before the trace, or a program that replaces functions. The kernel reports
// nothing, so the finder looks into the memory of processes, one a second, and when a trace ends.

// lookAtAll looks for probes that are gone from the first processes, in a bounded time.
func (f *finder) lookAtAll() {
	var all sync.WaitGroup
	pids := f.libs.mappers()
	for _, pid := range pids[:min(len(pids), leaversAtOnce)] {
		all.Add(1)
		f.lookAt(pid, all.Done)
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(attachPatience):
	}
}

// lookAt looks for probes that are gone from a process, when it is the turn of its user. It
// calls done after that.
func (f *finder) lookAt(pid int, done func()) {
	user, err := userOf(pid)
	if err != nil {
		done()
		return
	}
	f.work.Do(user, func() {
		defer done()
		mapped, _ := mappedLibraries(pid, f.opts.levels())
		for _, m := range mapped {
			if lib, err := openMapping(pid, m.Mapping, m.level); err == nil {
				f.libs.lookAt(pid, m.Mapping, attachKey{lib.id, m.level, pid})
				lib.Close()
			}
		}
	}, done)
}

// lookAt counts the probes of a library that are gone from one mapping of a process.
func (l *libraries) lookAt(pid int, m proc.Mapping, key attachKey) {
	l.mu.Lock()
	f := l.find(key)
	probed := f != nil && f.attachment != nil
	l.mu.Unlock()
	if !probed {
		return
	}
	functions := f.gone(pid, m)
	if len(functions) == 0 || !isMapped(pid, m) {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	of := f.mappers[pid]
	if l.table[f.key] != f || of == nil { // the probes come off
		return
	}
	if more := len(functions) - of.gone; more > 0 {
		of.gone = len(functions)
		l.loss.Add(lossGone, uint64(more))
		l.warnings.addFor(of.user, fmt.Sprintf("process %d: a debugger or the program itself removed probes from %s: later calls of %s are not counted",
			pid, f.library.Path, strings.Join(functions, ", ")))
	}
}

// isMapped reports whether a process still has a mapping.
func isMapped(pid int, m proc.Mapping) bool {
	for now, err := range proc.Mappings(pid) {
		if err == nil && now == m {
			return true
		}
	}
	return false
}

// gone returns the functions that lack a probe in a mapping of the library.
func (a *attachment) gone(pid int, m proc.Mapping) []string {
	memory, err := proc.OpenMemory(pid)
	if err != nil {
		return nil
	}
	defer memory.Close()
	functions := map[string]bool{}
	for offset, entry := range a.places {
		if offset >= m.Offset && offset-m.Offset < m.End-m.Start && lacksProbe(memory, m.Start+(offset-m.Offset)) {
			functions[Entries[entry].Symbol] = true
		}
	}
	return slices.Sorted(maps.Keys(functions))
}

// lacksProbe reports whether the code at an address is readable and not what the kernel puts where
// a probe lies: a breakpoint, or from Linux 6.18 on x86-64 a call in place of a long nop.
func lacksProbe(memory *os.File, address uint64) bool {
	const call = 0xe8
	now := make([]byte, len(breakpoint))
	_, err := memory.ReadAt(now, int64(address))
	return err == nil && !bytes.Equal(now, breakpoint) && !(runtime.GOARCH == "amd64" && now[0] == call)
}
