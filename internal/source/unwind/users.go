package unwind

import (
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// A userTable maps traced processes to users. It has its own descriptors of the tracer's
// maps, because the tracer may be closed first. They are closed with the last reference to
// the table.
type userTable struct{ targets, users *ebpf.Map }

// newUserTable returns nil if there are no maps.
func newUserTable(maps map[string]*ebpf.Map) (*userTable, error) {
	if maps["targets"] == nil || maps["users"] == nil {
		return nil, nil
	}
	targets, err := maps["targets"].Clone()
	if err != nil {
		return nil, fmt.Errorf("open the table of targets: %w", err)
	}
	users, err := maps["users"].Clone()
	if err != nil {
		return nil, fmt.Errorf("open the table of users: %w", err)
	}
	return &userTable{targets, users}, nil
}

// userOf returns the number of a process's user, 0 for a process that is not traced, and
// whether stack capture is off for the process.
func (t *userTable) userOf(pid int) (user uint16, shed bool) {
	if t == nil {
		return 0, false
	}
	return bpf.UserOf(t.targets, t.users, pid)
}
