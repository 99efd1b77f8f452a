package gpu

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Evidence is what is known about a process's use of GPUs.
type Evidence struct {
	Env    Env   // at its start; the process may have changed it
	Nodes  []int // minors of the device files in its /dev
	Opened []int // minors that it has open: libcuda opens those of visible GPUs, NVML those of all
	// Used are the ordinals known to have memory or a context.
	Used []int
	// Listed are the UUIDs of the devices on which NVML lists the process, nil if NVML does not
	// know.
	Listed []string
}

// Look reads pid's environment, device files and open files. The caller sets Used and Listed.
func Look(pid int) (Evidence, error) {
	env, err := environment(pid)
	devices, derr := proc.Devices(pid)
	open, oerr := opened(pid)
	if err := cmp.Or(err, derr, oerr); err != nil {
		return Evidence{}, fmt.Errorf("look at the GPUs of process %d: %w", pid, err)
	}
	return Evidence{Env: env, Nodes: nodes(devices), Opened: open}, nil
}

// Resolve maps e.Used to devices. An ordinal that is missing in the map is not known, and err, which is ErrUnknown,
// has the reason. The answer may change when Used grows.
//
// The environment's answer counts only if all evidence agrees with it. If it does not, because the program changed its
// environment or a cgroup hides devices, one used ordinal and one listed device still belong together. Resolve cannot
// notice a program that reorders GPUs by itself and uses all of them. Only the program's calls of cuDeviceGetUuid would
// show it, and perhaps a negative line in the process's account.
func Resolve(devices []Device, e Evidence) (map[int]Device, error) {
	known := make(map[int]Device, len(e.Used))
	if len(e.Used) == 0 {
		return known, nil
	}
	ordinals, err := Ordinals(e.Env, slices.DeleteFunc(slices.Clone(devices), func(d Device) bool {
		return !slices.Contains(e.Nodes, d.Minor)
	}))
	if err == nil {
		err = e.contradicts(ordinals)
	}
	if err != nil {
		if d, ok := e.only(devices); ok {
			known[e.Used[0]] = d
			return known, nil
		}
		return nil, err
	}
	for _, o := range e.Used {
		known[o] = ordinals[o]
	}
	return known, nil
}

// contradicts returns an error if the evidence is against ordinals, or not enough.
func (e Evidence) contradicts(ordinals []Device) error {
	for _, d := range ordinals {
		if !slices.Contains(e.Opened, d.Minor) {
			return unknown("the process has not opened GPU %s, which its environment shows", d.Label())
		}
	}
	for _, o := range e.Used {
		if o < 0 || o >= len(ordinals) {
			return unknown("the process uses device %d, which its environment does not show", o)
		}
		if e.Listed != nil && !slices.Contains(e.Listed, ordinals[o].UUID) {
			return unknown("NVML does not list the process on GPU %s", ordinals[o].Label())
		}
	}
	for _, uuid := range e.Listed {
		if !slices.ContainsFunc(ordinals, func(d Device) bool { return d.UUID == uuid }) {
			return unknown("NVML lists the process on a GPU that its environment does not show")
		}
	}
	// Open files alone prove little: NVML inside the process opens every GPU.
	if e.Listed == nil && (len(ordinals) > 1 || len(e.Opened) > 1) {
		return unknown("NVML does not say which GPUs the process uses")
	}
	return nil
}

// only returns the device of the one used ordinal, if only one is possible.
func (e Evidence) only(devices []Device) (Device, bool) {
	if len(e.Used) != 1 || len(e.Listed) > 1 {
		return Device{}, false
	}
	var found []Device
	for _, d := range devices {
		for _, c := range append([]Device{d}, d.Instances...) {
			switch {
			case c.UUID == "" || c.MIG:
			case len(e.Listed) == 1 && c.UUID == e.Listed[0],
				e.Listed == nil && len(e.Opened) == 1 && c.Minor == e.Opened[0]:
				found = append(found, c)
			}
		}
	}
	if len(found) != 1 {
		return Device{}, false
	}
	return found[0], true
}
