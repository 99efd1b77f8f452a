package proc

import (
	"bytes"
	"fmt"
)

// A Cgroup is where a process is in one hierarchy of control groups. cgroups(7).
type Cgroup struct {
	// Hierarchy is "" for the unified one (version 2), else the controllers of one
	// of version 1, with commas, or its name: "cpu,cpuacct", "name=systemd".
	Hierarchy string
	// Path begins at the root of this process's own cgroup namespace, and with
	// "/.." if it leads out of it. A process that may make control groups of its
	// own below one chooses the names below it: anything but newlines.
	Path string
}

// maxCgroups bounds what is read: as many hierarchies of version 1 as the kernel has
// controllers, each with a path of 4 KiB.
const maxCgroups = 128 << 10 // bytes

// Cgroups returns where a process is, in the kernel's order. The
// error is os.ErrNotExist for a process that is gone.
func Cgroups(pid int) ([]Cgroup, error) {
	b, err := read(pid, "cgroup", maxCgroups)
	if err != nil {
		return nil, fmt.Errorf("read the control groups of process %d: %w", pid, err)
	}
	return parseCgroups(b), nil
}

// parseCgroups reads lines of "number:hierarchy:path". It passes over others.
func parseCgroups(b []byte) (groups []Cgroup) {
	for line := range bytes.Lines(b) {
		fields := bytes.SplitN(bytes.TrimSuffix(line, []byte("\n")), []byte(":"), 3)
		if len(fields) != 3 || !bytes.HasPrefix(fields[2], []byte("/")) {
			continue
		}
		// What the kernel adds where the control group was removed.
		path := bytes.TrimSuffix(fields[2], []byte(" (deleted)"))
		groups = append(groups, Cgroup{string(fields[1]), string(path)})
	}
	return groups
}
