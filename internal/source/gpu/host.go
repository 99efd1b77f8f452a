package gpu

import (
	"errors"
	"io/fs"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

const (
	maxMinor = 1024
	// nvidiaMajor is the device major of /dev/nvidiaN (devices.txt).
	nvidiaMajor = 195
)

// A host has functions that read the processes here.
type host struct {
	initial bool         // we are in the initial PID namespace
	all     func() []int // the processes
	name    func(pid int) string
	opened  func(pid int) ([]int, error) // see the function opened
}

func here() host {
	return host{proc.InitialPIDNamespace(), proc.All, proc.Comm, opened}
}

func (h host) holds(pid, minor int) bool {
	minors, err := h.opened(pid)
	return err == nil && minor >= 0 && slices.Contains(minors, minor)
}

// holders returns the processes here that have /dev/nvidia<minor> open, nil if some process cannot be read.
func (h host) holders(minor int) (pids []int) {
	if minor < 0 {
		return nil
	}
	for _, pid := range h.all() {
		if pid == os.Getpid() {
			continue // NVML has opened the device for us
		}
		minors, err := h.opened(pid)
		switch {
		case err == nil && slices.Contains(minors, minor):
			pids = append(pids, pid)
		case err != nil && !errors.Is(err, fs.ErrNotExist):
			return nil
		}
	}
	return pids
}

// opened returns the minors of the /dev/nvidiaN that pid has open, in ascending order.
func opened(pid int) ([]int, error) { return minors(proc.OpenFiles(pid)) }

func minors(files iter.Seq2[string, error]) (minors []int, err error) {
	for path, err := range files {
		if err != nil {
			return nil, err
		}
		if minor, ok := deviceFile(path); ok && !slices.Contains(minors, minor) {
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	return minors, nil
}

// deviceFile returns N of a path /dev/nvidiaN.
func deviceFile(path string) (minor int, ok bool) {
	s, ok := strings.CutPrefix(path, "/dev/nvidia")
	if !ok || s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	minor, err := strconv.Atoi(s)
	return minor, err == nil && minor < maxMinor
}

// nodes returns the minors of the GPUs' files among the devices in a /dev, in ascending order.
func nodes(devices map[string]uint64) (minors []int) {
	for name, number := range devices {
		if minor, ok := deviceFile("/dev/" + name); ok && unix.Major(number) == nvidiaMajor && int(unix.Minor(number)) == minor {
			minors = append(minors, minor)
		}
	}
	slices.Sort(minors)
	return minors
}

// environment reads pid's initial values of the variables that order and hide GPUs.
func environment(pid int) (e Env, err error) {
	const visible, order = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER"
	set, err := proc.Environ(pid, visible, order)
	e.Visible, e.VisibleSet = set[visible]
	e.Order = set[order]
	return e, err
}
