package proc

import (
	"errors"
	"os"
	"slices"
	"strconv"
)

// All returns the processes that are here now, in order of pid.
func All() []int { return numbered("/proc") }

// threads returns those that a process has now, in order.
func threads(pid int) []int { return numbered(dirOf(pid) + "/task") }

// numbered returns the entries of a directory that are numbers, in order.
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

// over tells whether a thread has ended: its directory then shows no memory,
// files or root.
func over(pid int) bool {
	fields, err := stat(pid)
	return err != nil || fields[0][0] == 'Z' || fields[0][0] == 'X'
}

// living returns a thread of the process that has not ended: the first unless
// that one has. /proc/TID shows what its process has.
func living(pid int) int {
	if !over(pid) {
		return pid
	}
	for _, tid := range threads(pid) {
		if !over(tid) {
			return tid
		}
	}
	return pid
}

// Ended tells whether there is no such process any more, or one that was only
// not waited for yet. One whose first thread alone has ended has not.
func Ended(pid int) bool {
	if _, err := os.Stat(dirOf(pid)); err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	return over(living(pid))
}
