package gpu

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
)

// Env has the variables of the environment that select CUDA's GPUs.
type Env struct {
	Visible    string // CUDA_VISIBLE_DEVICES
	VisibleSet bool   // it is set, perhaps to ""
	Order      string // CUDA_DEVICE_ORDER, "" if it is not set
}

// Ordinals returns the devices that CUDA shows a process with this environment, by ordinal. devices are those
// that the process can open, in the order of Devices. If there are none, and no error, CUDA shows no device. The
// error is ErrUnknown, with the reason, if libcuda's answer is not certain.
//
// Rules: CUDA Programming Guide, "CUDA Environment Variables", and otherwise driver 580 itself (see
// TestOrdinals).
func Ordinals(env Env, devices []Device) ([]Device, error) {
	if env.VisibleSet && env.Visible == "" {
		return nil, nil
	}
	switch env.Order {
	case "", "FASTEST_FIRST", "PCI_BUS_ID":
	default:
		return nil, nil // cuInit fails with CUDA_ERROR_INVALID_DEVICE
	}
	if len(devices) == 0 {
		return nil, nil
	}
	for _, d := range devices {
		if d.UUID == "" {
			return nil, unknown("GPU %s does not answer", d.Label())
		}
	}
	switch {
	case strings.HasPrefix(env.Visible, "MIG-"):
		return visibleInstance(env.Visible, devices)
	case slices.ContainsFunc(devices, func(d Device) bool { return d.MIG }):
		return withInstances(env, devices)
	case strings.HasPrefix(env.Visible, "GPU-"):
		return collect(env.Visible, func(elem string) (Device, error) { return byUUID(elem, devices) })
	}
	ordered, err := enumerate(env.Order, devices)
	if err != nil || !env.VisibleSet {
		return ordered, err
	}
	return collect(env.Visible, func(elem string) (Device, error) { return byIndex(elem, ordered) })
}

func unknown(format string, args ...any) error {
	return fmt.Errorf("CUDA's device order: %w: %s", ErrUnknown, fmt.Sprintf(format, args...))
}

// errInvalid ends a list of devices.
var errInvalid = errors.New("no such device")

// collect reads a list up to its first invalid element. If a device is in it twice before that, cuInit fails
// (CUDA_ERROR_INVALID_DEVICE).
func collect(list string, find func(elem string) (Device, error)) ([]Device, error) {
	var visible []Device
	for elem := range strings.SplitSeq(list, ",") {
		d, err := find(elem)
		if errors.Is(err, errInvalid) {
			break
		}
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(visible, func(o Device) bool { return o.UUID == d.UUID }) {
			return nil, nil
		}
		visible = append(visible, d)
	}
	return visible, nil
}

// enumerate returns devices in CUDA's own order. FASTEST_FIRST, the default, uses figures that only libcuda has.
// GPUs of one model are in PCI order.
func enumerate(order string, devices []Device) ([]Device, error) {
	for _, d := range devices {
		if len(devices) > 1 && !d.PCI.Known {
			return nil, unknown("GPU %s has no PCI address", d.Label())
		}
		if order != "PCI_BUS_ID" && (d.Name != devices[0].Name || d.Memory.Total != devices[0].Memory.Total) {
			return nil, unknown("GPUs of several models, fastest first")
		}
	}
	ordered := slices.Clone(devices)
	sorting.Stable(ordered, func(a, b Device) int {
		return a.PCI.compare(b.PCI)
	})
	return ordered, nil
}

// byIndex reads an index as C's strtol does in base 10, cut to an int: there may be white space and a sign before
// the digits, and anything after them.
func byIndex(elem string, ordered []Device) (Device, error) {
	s := strings.TrimLeft(elem, " \t\n\v\f\r")
	digits := 0
	if s != "" && (s[0] == '+' || s[0] == '-') {
		digits = 1
	}
	start := digits
	for digits < len(s) && s[digits] >= '0' && s[digits] <= '9' {
		digits++
	}
	if digits == start {
		return Device{}, errInvalid
	}
	v, err := strconv.ParseInt(s[:digits], 10, 64)
	if err != nil {
		return Device{}, unknown("index %q is out of range", s[:min(digits, 32)])
	}
	if i := int32(v); i >= 0 && int(i) < len(ordered) {
		return ordered[i], nil
	}
	return Device{}, errInvalid
}

const uuidLen = len("GPU-93580dcd-7db5-f6a1-9947-802b5c4fc461")

// byUUID accepts a whole UUID with anything after it, or a beginning that only one GPU has. The case of hexadecimal
// digits does not matter, that of "GPU-" does.
func byUUID(elem string, devices []Device) (Device, error) {
	if !strings.HasPrefix(elem, "GPU-") {
		return Device{}, errInvalid
	}
	head := elem
	for i := len("GPU-"); i < len(elem); i++ {
		if !strings.ContainsRune("0123456789abcdefABCDEF-", rune(elem[i])) {
			head = elem[:i]
			break
		}
	}
	var found []Device
	for _, d := range devices {
		if len(head) <= len(d.UUID) && strings.EqualFold(d.UUID[:len(head)], head) {
			found = append(found, d)
		}
	}
	switch {
	case len(found) == 1 && len(head) == uuidLen:
		return found[0], nil
	case len(found) == 1 && head == elem && head != "GPU-":
		return found[0], nil
	case len(found) > 1:
		return Device{}, errInvalid // ambiguous
	case !slices.ContainsFunc(devices, func(d Device) bool { return mayName(head, d.UUID) }):
		return Device{}, errInvalid
	}
	// A beginning with something after it, or digits in other groups.
	return Device{}, unknown("%.48q is not written as a UUID", elem)
}

// mayName reports whether the digits of head and uuid have the same beginning, in any groups.
func mayName(head, uuid string) bool {
	h := strings.ReplaceAll(head[len("GPU-"):], "-", "")
	u := strings.ReplaceAll(strings.TrimPrefix(uuid, "GPU-"), "-", "")
	n := min(len(h), len(u))
	return strings.EqualFold(h[:n], u[:n])
}

// visibleInstance reads the names of MIG instances: "MIG-<UUID>", or
// "MIG-GPU-<UUID>/<GPU instance>/<compute instance>" of drivers before 470.
// A process sees one instance (MIG User Guide, "CUDA Device Enumeration"). The guide does not say which, if the
// list has several.
func visibleInstance(list string, devices []Device) ([]Device, error) {
	instances := allInstances(devices)
	if len(instances) == 0 {
		return nil, nil
	}
	if strings.Contains(list, ",") {
		return nil, unknown("several MIG instances are named")
	}
	for _, d := range instances {
		if d.UUID == "" {
			return nil, unknown("MIG instance %s does not answer", d.Label())
		}
		old := fmt.Sprintf("MIG-%s/%d/%d", d.Parent, d.GPUInstance, d.ComputeInstance)
		if list == d.UUID || list == old {
			return []Device{d}, nil
		}
	}
	return nil, unknown("no MIG instance is named %.64q", list)
}

// withInstances returns the devices if some GPU is in MIG mode and the list has no MIG name. A process then sees
// the first available instance, and no whole GPU. This is certain only if there is one instance in all.
func withInstances(env Env, devices []Device) ([]Device, error) {
	instances := allInstances(devices)
	if !env.VisibleSet && len(instances) == 1 && instances[0].UUID != "" {
		return instances, nil
	}
	return nil, unknown("a GPU is in MIG mode")
}

func allInstances(devices []Device) []Device {
	var all []Device
	for _, d := range devices {
		all = append(all, d.Instances...)
	}
	return all
}
