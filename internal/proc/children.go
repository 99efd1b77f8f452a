package proc

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
)

// Children returns the children that a process has now, whichever of its
// threads began them, in order of pid. One that begins meanwhile may be missed.
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
		if parent, err := parentOf(c); err == nil && parent == pid {
			out = append(out, c)
		}
	}
	slices.Sort(out)
	return out
}

// listedChildren reads what kernels with CONFIG_PROC_CHILDREN tell. The error
// is that this one does not.
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
		if parent, err := parentOf(other); err == nil && parent == pid {
			children = append(children, other)
		}
	}
	return children
}
