//go:build cgo

package gpu

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"
)

// lacks is a library without the named functions.
type lacks []string

func (l lacks) Lookup(name string) error {
	if slices.Contains(l, name) {
		return errors.New("undefined symbol: " + name)
	}
	return nil
}

func (lacks) Close() error { return nil }

// fakeGPU is device i of a machine, with the given compute processes.
func fakeGPU(i int, uuid string, procs ...nvml.ProcessInfo) *mock.Device {
	return &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc: func() (string, nvml.Return) { return "NVIDIA H200", nvml.SUCCESS },
		GetPciInfoFunc: func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0, Bus: uint32(0x1a + i)}, nvml.SUCCESS
		},
		GetMinorNumberFunc: func() (int, nvml.Return) { return i, nvml.SUCCESS },
		GetMemoryInfo_v2Func: func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Total: 1000 * mib, Reserved: 10 * mib, Used: 610 * mib, Free: 380 * mib}, nvml.SUCCESS
		},
		GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
			return nvml.Memory{Total: 1000 * mib, Used: 620 * mib, Free: 380 * mib}, nvml.SUCCESS
		},
		GetMigModeFunc: func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED },
		GetComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) {
			return procs, nvml.SUCCESS
		},
		GetGraphicsRunningProcessesFunc:   func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS },
		GetMPSComputeRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED },
	}
}

func fakeLib(devices ...*mock.Device) *mock.Interface {
	return &mock.Interface{
		InitFunc:                   func() nvml.Return { return nvml.SUCCESS },
		ShutdownFunc:               func() nvml.Return { return nvml.SUCCESS },
		SystemGetDriverVersionFunc: func() (string, nvml.Return) { return "580.159.04", nvml.SUCCESS },
		SystemGetCudaDriverVersion_v2Func: func() (int, nvml.Return) {
			return 13000, nvml.SUCCESS
		},
		DeviceGetCountFunc: func() (int, nvml.Return) { return len(devices), nvml.SUCCESS },
		DeviceGetHandleByIndexFunc: func(i int) (nvml.Device, nvml.Return) {
			if i >= len(devices) || devices[i] == nil {
				return nil, nvml.ERROR_GPU_IS_LOST
			}
			return devices[i], nvml.SUCCESS
		},
		DeviceGetHandleByUUIDFunc: func(uuid string) (nvml.Device, nvml.Return) {
			for _, d := range devices {
				if d == nil {
					continue
				}
				if u, _ := d.GetUUID(); u == uuid {
					return d, nvml.SUCCESS
				}
				if d.GetMigDeviceHandleByIndexFunc != nil {
					for i := range 7 {
						if m, ret := d.GetMigDeviceHandleByIndex(i); ret == nvml.SUCCESS {
							if u, _ := m.GetUUID(); u == uuid {
								return m, nvml.SUCCESS
							}
						}
					}
				}
			}
			return nil, nvml.ERROR_NOT_FOUND
		},
	}
}

func open(t *testing.T, lib nvml.Interface, syms symbols, host host) *NVML {
	t.Helper()
	n, err := start(lib, syms, host)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

func TestOpenFails(t *testing.T) {
	if n, err := OpenLibrary("/nonexistent/libnvidia-ml.so.1"); n != nil || !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "No such file") {
		t.Errorf("%v, %v: want ErrNoLibrary with the linker's reason", n, err)
	}
	for _, ret := range []nvml.Return{nvml.ERROR_DRIVER_NOT_LOADED, nvml.ERROR_LIB_RM_VERSION_MISMATCH, nvml.ERROR_UNKNOWN, nvml.Return(12345)} {
		lib := fakeLib()
		lib.InitFunc = func() nvml.Return { return ret }
		n, err := start(lib, lacks{}, host{})
		if n != nil || err == nil || !strings.Contains(err.Error(), ret.Error()) {
			t.Errorf("%v: %v, %v", ret, n, err)
		}
		if len(lib.ShutdownCalls()) != 0 {
			t.Error("Shutdown without Init")
		}
	}
	for _, l := range []lacks{{"nvmlErrorString"}, {"nvmlShutdown"}, {"nvmlInit", "nvmlInit_v2"}} {
		lib := fakeLib()
		if _, err := start(lib, l, host{}); !errors.Is(err, ErrMissing) || len(lib.InitCalls()) != 0 {
			t.Errorf("without %v: %v", l, err)
		}
	}
}

func TestVersions(t *testing.T) {
	n := open(t, fakeLib(), lacks{}, host{})
	if v, err := n.DriverVersion(); v != "580.159.04" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	if major, minor, err := n.CUDAVersion(); major != 13 || minor != 0 || err != nil {
		t.Errorf("%d.%d, %v", major, minor, err)
	}
	old := open(t, fakeLib(), lacks{"nvmlSystemGetCudaDriverVersion_v2"}, host{})
	if _, _, err := old.CUDAVersion(); !errors.Is(err, ErrMissing) {
		t.Errorf("old library: %v", err)
	}
}

func TestClose(t *testing.T) {
	lib := fakeLib(fakeGPU(0, u0))
	n := open(t, lib, lacks{}, host{})
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if err := n.Close(); err != nil || len(lib.ShutdownCalls()) != 1 {
		t.Errorf("second Close: %v, %d calls", err, len(lib.ShutdownCalls()))
	}
	if _, err := n.Devices(); !errors.Is(err, ErrClosed) {
		t.Errorf("Devices after Close: %v", err)
	}
	if _, err := n.Use(Device{UUID: u0}, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("Use after Close: %v", err)
	}
}

func TestDevices(t *testing.T) {
	n := open(t, fakeLib(fakeGPU(0, u0), nil, fakeGPU(2, u1)), lacks{"nvmlDeviceGetMigMode"}, host{})
	got, err := n.Devices()
	if err != nil {
		t.Fatal(err)
	}
	m := Memory{Total: 1000 * mib, Used: 610 * mib, Free: 380 * mib, Reserved: 10 * mib, Known: true}
	want := []Device{
		{Index: 0, UUID: u0, Name: "NVIDIA H200", PCI: PCI{Bus: 0x1a, Known: true}, Minor: 0, Memory: m},
		{Index: 1, Minor: -1, Reason: "nvmlDeviceGetHandleByIndex_v2: ERROR_GPU_IS_LOST (15)"},
		{Index: 2, UUID: u1, Name: "NVIDIA H200", PCI: PCI{Bus: 0x1c, Known: true}, Minor: 2, Memory: m},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if _, err := n.Processes(got[1]); err == nil {
		t.Error("processes of a lost GPU: no error")
	}
}

func TestDevicesLie(t *testing.T) {
	for _, count := range []int{-1, maxDevices + 1, math.MaxInt32} {
		lib := fakeLib()
		lib.DeviceGetCountFunc = func() (int, nvml.Return) { return count, nvml.SUCCESS }
		if _, err := open(t, lib, lacks{}, host{}).Devices(); err == nil {
			t.Errorf("%d GPUs: no error", count)
		}
	}
	for _, v := range []nvml.Memory_v2{{}, {Total: math.MaxUint64, Used: 1}, {Total: 100, Used: 101}, {Total: 100, Free: math.MaxUint64}, {Total: 100, Reserved: 101}} {
		d := fakeGPU(0, u0)
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return v, nvml.SUCCESS }
		got, err := open(t, fakeLib(d), lacks{}, host{}).Devices()
		if err != nil || got[0].Memory != (Memory{}) {
			t.Errorf("%+v became %+v, %v", v, got, err)
		}
	}
	old, err := open(t, fakeLib(fakeGPU(0, u0)), lacks{"nvmlDeviceGetMemoryInfo_v2"}, host{}).Devices()
	if want := (Memory{Total: 1000 * mib, Used: 620 * mib, Free: 380 * mib, Known: true}); err != nil || old[0].Memory != want {
		t.Errorf("old library: %+v, %v", old, err)
	}
}

func migGPU(instances map[int]*mock.Device) *mock.Device {
	d := fakeGPU(0, u0)
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return nvml.DEVICE_MIG_ENABLE, nvml.DEVICE_MIG_ENABLE, nvml.SUCCESS }
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if m := instances[i]; m != nil {
			return m, nvml.SUCCESS
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	// Its aggregate needs privileges that we may lack.
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NO_PERMISSION }
	return d
}

func TestMIG(t *testing.T) {
	instance := func(uuid string, gi, ci int, pid uint32) *mock.Device {
		d := fakeGPU(0, uuid, nvml.ProcessInfo{Pid: pid, UsedGpuMemory: 64 * mib})
		d.GetGpuInstanceIdFunc = func() (int, nvml.Return) { return gi, nvml.SUCCESS }
		d.GetComputeInstanceIdFunc = func() (int, nvml.Return) { return ci, nvml.SUCCESS }
		d.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }
		return d
	}
	lib := fakeLib(migGPU(map[int]*mock.Device{0: instance("MIG-a", 7, 0, 11), 3: instance("MIG-b", 9, 1, 12)}))
	n := open(t, lib, lacks{}, fakeHost(true, map[int][]string{11: nil, 12: nil}))
	devices, err := n.Devices()
	if err != nil || len(devices) != 1 || !devices[0].MIG || len(devices[0].Instances) != 2 {
		t.Fatalf("%+v, %v", devices, err)
	}
	b := devices[0].Instances[1]
	if b.Label() != "0:3" || b.Parent != u0 || b.GPUInstance != 9 || b.ComputeInstance != 1 || b.UUID != "MIG-b" || !b.Memory.Known {
		t.Errorf("%+v", b)
	}
	if u, err := n.Use(b, 12); err != nil || u != (ProcessUse{PID: 12, Name: "p12", Bytes: 64 * mib, Known: true}) {
		t.Errorf("%+v, %v", u, err)
	}
	if u, err := n.Use(b, 11); err != nil || u.Known {
		t.Errorf("the other instance's process: %+v, %v", u, err)
	}
	if _, err := n.Processes(devices[0]); err == nil || !strings.Contains(err.Error(), "PERMISSION") {
		t.Errorf("the whole GPU: %v", err)
	}
}

func TestProcesses(t *testing.T) {
	g0 := fakeGPU(0, u0, nvml.ProcessInfo{Pid: 11, UsedGpuMemory: 500 * mib}, nvml.ProcessInfo{Pid: 12, UsedGpuMemory: math.MaxUint64})
	g0.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 11, UsedGpuMemory: 500 * mib}}, nvml.SUCCESS
	}
	g0.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 13, UsedGpuMemory: 100 * mib}}, nvml.SUCCESS
	}
	g1 := fakeGPU(1, u1, nvml.ProcessInfo{Pid: 11, UsedGpuMemory: 200 * mib})
	open0 := []string{"/dev/nvidia0", "/dev/nvidia1"}
	files := map[int][]string{11: open0, 12: open0, 13: open0}
	n := open(t, fakeLib(g0, g1), lacks{}, fakeHost(true, files))
	devices, err := n.Devices()
	if err != nil {
		t.Fatal(err)
	}
	want := []ProcessUse{{PID: 11, Name: "p11", Bytes: 500 * mib, Known: true}, {PID: 12, Name: "p12"}, {PID: 13, Name: "p13", Bytes: 100 * mib, Known: true}}
	got, err := n.Processes(devices[0])
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
	if u, err := n.Use(devices[1], 11); err != nil || u.Bytes != 200*mib || !u.Known || u.Inferred {
		t.Errorf("second GPU: %+v, %v", u, err)
	}
	if u, err := n.Use(devices[0], 12); err != nil || u.Known || u.Bytes != 0 {
		t.Errorf("not available: %+v, %v", u, err)
	}

	// In a container, one process of the host's among them: no pid is believed.
	delete(files, 12)
	n = open(t, fakeLib(g0, g1), lacks{}, fakeHost(false, files))
	got, err = n.Processes(devices[0])
	want = []ProcessUse{{Bytes: 500 * mib, Known: true}, {}, {Bytes: 100 * mib, Known: true}}
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Error(err, d)
	}
	if u, err := n.Use(devices[0], 11); err != nil || u.Known {
		t.Errorf("foreign pids: %+v, %v", u, err)
	}
}

func TestProcessesFail(t *testing.T) {
	broken := func(f func() ([]nvml.ProcessInfo, nvml.Return)) *mock.Device {
		d := fakeGPU(0, u0)
		d.GetComputeRunningProcessesFunc = f
		return d
	}
	host := fakeHost(true, map[int][]string{11: {"/dev/nvidia0"}})
	device := Device{UUID: u0, Minor: 0, Memory: Memory{Total: 1000 * mib, Known: true}}
	whole := ProcessUse{PID: 11, Name: "p11", Bytes: 610 * mib, Known: true, Inferred: true}
	for _, tt := range []struct {
		name string
		get  func() ([]nvml.ProcessInfo, nvml.Return)
		syms lacks
		use  ProcessUse
		err  string // of Use
	}{
		{"unsupported", func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_NOT_SUPPORTED }, nil, whole, ""},
		{"missing", nil, lacks{"nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses_v3"}, whole, ""},
		{"lost", func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.ERROR_GPU_IS_LOST }, nil, ProcessUse{PID: 11}, "LOST"},
		{"binding panics on a lying count", func() ([]nvml.ProcessInfo, nvml.Return) {
			n := 5
			return make([]nvml.ProcessInfo, 1)[:n], nvml.SUCCESS
		}, nil, ProcessUse{PID: 11}, "inconsistent"},
	} {
		n := open(t, fakeLib(broken(tt.get)), tt.syms, host)
		if _, err := n.Processes(device); err == nil {
			t.Errorf("%s: Processes: no error", tt.name)
		}
		u, err := n.Use(device, 11)
		if u != tt.use || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %+v, %v", tt.name, u, err)
		}
	}
}
