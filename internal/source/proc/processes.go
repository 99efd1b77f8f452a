package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
)

// All returns the processes that are here now, in order of pid.
func All() []int { return numbered("/proc") }

// threads returns those that a process has now, in order.
func threads(pid int) []int { return numbered(dirOf(pid) + "/task") }

// Threads returns the threads that a process has at the moment.
func Threads(pid int) []int { return threads(pid) }

func numbered(dir string) (numbers []int) {
	// The entries that could be read come with an error, too.
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			numbers = append(numbers, n)
		}
	}
	slices.Sort(numbers)
	return numbers
}

// ThreadEnded reports whether a thread has ended: its directory then shows no memory,
// files or root.
func ThreadEnded(tid int) bool {
	fields, err := stat(tid)
	return err != nil || isOver(fields)
}

func isOver(stat [][]byte) bool { return stat[0][0] == 'Z' || stat[0][0] == 'X' }

// living returns a thread of the process that has not ended: the first unless
// that one has. /proc/TID shows what its process has.
func living(pid int) int {
	if !ThreadEnded(pid) {
		return pid
	}
	for _, tid := range threads(pid) {
		if !ThreadEnded(tid) {
			return tid
		}
	}
	return pid
}

// Ended reports whether a process has ended. A zombie has ended, but a process with a
// running thread has not, even if its first thread ended.
func Ended(pid int) bool {
	fields, err := stat(pid)
	return (err != nil || isOver(fields)) && ended(pid)
}

// EndedSince is Ended for the process that began at start (StartTicks), even if another
// process has its PID by now.
func EndedSince(pid int, start uint64) bool {
	fields, err := stat(pid)
	if err == nil {
		if ticks, err := number(fields, 22); err == nil && ticks != start {
			return true
		}
	}
	return (err != nil || isOver(fields)) && ended(pid)
}

// ended is Ended of a process whose first thread has ended.
func ended(pid int) bool {
	if _, err := os.Stat(dirOf(pid)); err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return ThreadEnded(living(pid))
}

// Children returns the children that a process has now, whichever of its
// threads began them, in order of pid. It may miss one that begins during the call.
func Children(pid int) []int {
	children := map[int]bool{}
	// The kernel may skip a child while one before it ends: it is then seen
	// the next time.
	for range 3 {
		before := len(children)
		found, err := listedChildren(pid)
		if err != nil {
			found = scannedChildren(pid)
		}
		for _, c := range found {
			children[c] = true
		}
		if len(children) == before {
			break
		}
	}
	var out []int
	for c := range children {
		if parent, err := Parent(c); err == nil && parent == pid {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// listedChildren reads the list that kernels with CONFIG_PROC_CHILDREN have. It fails on
// others.
func listedChildren(pid int) (children []int, err error) {
	for _, tid := range threads(pid) {
		task := dirOf(pid) + "/task/" + strconv.Itoa(tid)
		b, err := os.ReadFile(task + "/children")
		if errors.Is(err, os.ErrNotExist) {
			if _, ended := os.Stat(task); ended != nil {
				continue
			}
		}
		if err != nil {
			return nil, err
		}
		for field := range bytes.FieldsSeq(b) {
			if child, err := strconv.Atoi(string(field)); err == nil {
				children = append(children, child)
			}
		}
	}
	return children, nil
}

// scannedChildren asks every process for its parent.
func scannedChildren(pid int) (children []int) {
	for _, other := range All() {
		if parent, err := Parent(other); err == nil && parent == pid {
			children = append(children, other)
		}
	}
	return children
}
