//go:build cgo

package gpu

import (
	"errors"
	"fmt"
	"math"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// maxDevices bounds the calls that a wrong count can cause.
const maxDevices = 256

// Devices returns all GPUs in NVML's order. A GPU that does not answer has its place and a Reason. The error
// means that there is no list at all.
func (n *NVML) Devices() ([]Device, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	count, err := value(n, n.lib.DeviceGetCount, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	if err != nil {
		return nil, fmt.Errorf("list GPUs: %w", err)
	}
	if count < 0 || count > maxDevices {
		return nil, fmt.Errorf("list GPUs: NVML says there are %d", count)
	}
	devices := make([]Device, count)
	for i := range devices {
		devices[i] = n.device(i)
	}
	return devices, nil
}

func (n *NVML) device(i int) Device {
	d := Device{Index: i, Minor: -1}
	h, err := value(n, func() (nvml.Device, nvml.Return) { return n.lib.DeviceGetHandleByIndex(i) },
		"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
	if err == nil {
		d.UUID, err = value(n, h.GetUUID, "nvmlDeviceGetUUID")
	}
	if err != nil {
		d.Reason = err.Error()
		return d
	}
	// Each of the others may be missing. Then it has the zero value.
	d.Name, _ = value(n, h.GetName, "nvmlDeviceGetName")
	if pci, err := value(n, h.GetPciInfo, "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"); err == nil && pci.Bus <= math.MaxUint8 && pci.Device <= math.MaxUint8 {
		d.PCI = PCI{pci.Domain, uint8(pci.Bus), uint8(pci.Device), true}
	}
	if minor, err := value(n, h.GetMinorNumber, "nvmlDeviceGetMinorNumber"); err == nil {
		d.Minor = minor
	}
	d.Memory = n.memory(h)
	mode, err := value(n, func() (int, nvml.Return) {
		current, _, ret := h.GetMigMode()
		return current, ret
	}, "nvmlDeviceGetMigMode")
	if err == nil && mode == nvml.DEVICE_MIG_ENABLE {
		d.MIG = true
		d.Instances = n.instances(h, d)
	}
	return d
}

// memory prefers the second version of the call, which separates the driver's reserve from the used memory.
func (n *NVML) memory(h nvml.Device) Memory {
	var m Memory
	if v, err := value(n, h.GetMemoryInfo_v2, "nvmlDeviceGetMemoryInfo_v2"); err == nil {
		m = Memory{Total: int64(v.Total), Used: int64(v.Used), Free: int64(v.Free), Reserved: int64(v.Reserved)}
	} else if v, err := value(n, h.GetMemoryInfo, "nvmlDeviceGetMemoryInfo"); err == nil {
		m = Memory{Total: int64(v.Total), Used: int64(v.Used), Free: int64(v.Free)}
	}
	if m.Total <= 0 || m.Used < 0 || m.Free < 0 || m.Reserved < 0 ||
		m.Used > m.Total || m.Free > m.Total || m.Reserved > m.Total {
		return Memory{}
	}
	m.Known = true
	return m
}

func (n *NVML) instances(h nvml.Device, parent Device) []Device {
	count, err := value(n, h.GetMaxMigDeviceCount, "nvmlDeviceGetMaxMigDeviceCount")
	if err != nil || count < 0 || count > maxDevices {
		return nil
	}
	var all []Device
	for i := range count {
		m, err := value(n, func() (nvml.Device, nvml.Return) { return h.GetMigDeviceHandleByIndex(i) },
			"nvmlDeviceGetMigDeviceHandleByIndex")
		if err != nil {
			continue // NVML numbers instances with gaps
		}
		d := Device{
			Index: i, PCI: parent.PCI, Minor: parent.Minor, Memory: n.memory(m),
			Parent: parent.UUID, ParentIndex: parent.Index, GPUInstance: -1, ComputeInstance: -1,
		}
		if d.UUID, err = value(n, m.GetUUID, "nvmlDeviceGetUUID"); err != nil {
			d.Reason = err.Error()
		}
		d.Name, _ = value(n, m.GetName, "nvmlDeviceGetName")
		if id, err := value(n, m.GetGpuInstanceId, "nvmlDeviceGetGpuInstanceId"); err == nil {
			d.GPUInstance = id
		}
		if id, err := value(n, m.GetComputeInstanceId, "nvmlDeviceGetComputeInstanceId"); err == nil {
			d.ComputeInstance = id
		}
		all = append(all, d)
	}
	return all
}

// Processes returns the processes that hold memory on d. A process outside our PID namespace has PID 0. The
// error is ErrUnsupported or ErrMissing if NVML has no such list, as in some virtual machines.
func (n *NVML) Processes(d Device) ([]ProcessUse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, err := n.list(d)
	if err != nil {
		return nil, err
	}
	return l.uses(), nil
}

// Use returns the memory of pid (in our PID namespace) on d. The caller must know that pid holds memory there,
// for example by a traced allocation: Use may infer a figure from that. A missing figure is not Known, and no
// error.
func (n *NVML) Use(d Device, pid int) (ProcessUse, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	l, err := n.list(d)
	if err != nil && !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMissing) {
		return ProcessUse{PID: pid}, err
	}
	if err != nil {
		l = listing{absent: true, initial: n.host.initial}
	}
	if h, err := n.handle(d); err == nil {
		l.memory = n.memory(h)
	}
	l.holders = func() []int { return n.host.holders(d.Minor) }
	u := l.use(pid)
	u.Name = n.host.name(pid)
	return u, nil
}

func (n *NVML) handle(d Device) (nvml.Device, error) {
	if d.UUID == "" {
		return nil, fmt.Errorf("GPU %s did not answer: %s", d.Label(), d.Reason)
	}
	return value(n, func() (nvml.Device, nvml.Return) { return n.lib.DeviceGetHandleByUUID(d.UUID) }, "nvmlDeviceGetHandleByUUID")
}

// list merges NVML's three lists. A process may be in several of them, each time with its whole use.
func (n *NVML) list(d Device) (listing, error) {
	h, err := n.handle(d)
	if err != nil {
		return listing{}, fmt.Errorf("list processes of GPU %s: %w", d.Label(), err)
	}
	l := listing{total: d.Memory.Total, initial: n.host.initial}
	if l.total <= 0 {
		l.total = math.MaxInt64
	}
	for i, q := range []struct {
		get  func() ([]nvml.ProcessInfo, nvml.Return)
		name string
	}{
		{h.GetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses"},
		{h.GetGraphicsRunningProcesses, "nvmlDeviceGetGraphicsRunningProcesses"},
		{h.GetMPSComputeRunningProcesses, "nvmlDeviceGetMPSComputeRunningProcesses"},
	} {
		infos, err := value(n, q.get, q.name+"_v3", q.name+"_v2", q.name)
		if err != nil {
			// Only the compute list is everywhere; MPS's is young, and MIG has no graphics.
			if i == 0 || !errors.Is(err, ErrUnsupported) && !errors.Is(err, ErrMissing) {
				return listing{}, fmt.Errorf("list processes of GPU %s: %w", d.Label(), err)
			}
			continue
		}
		for _, info := range infos {
			l.add(int(info.Pid), info.UsedGpuMemory)
		}
	}
	l.check(func(pid int) bool { return n.host.holds(pid, d.Minor) })
	for i := range l.entries {
		if l.trusted {
			l.entries[i].name = n.host.name(l.entries[i].pid)
		}
	}
	return l, nil
}
