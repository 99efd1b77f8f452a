package doctor

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
)

type gpus struct {
	nvml       *gpu.NVML // nil if err
	err        error
	driver     string // "" if not known
	cuda       string // "" if not known
	devices    []gpu.Device
	devicesErr error
}

// readGPUs asks what gpu.Open returned. The caller must close the answer.
func readGPUs(nvml *gpu.NVML, err error) gpus {
	g := gpus{nvml: nvml, err: err}
	if err != nil {
		return g
	}
	g.driver, _ = nvml.DriverVersion()
	if major, minor, err := nvml.CUDAVersion(); err == nil {
		g.cuda = fmt.Sprintf("%d.%d", major, minor)
	}
	g.devices, g.devicesErr = nvml.Devices()
	return g
}

func (g gpus) close() {
	if g.err == nil {
		g.nvml.Close()
	}
}

func checkGPUs(in gpus) []Check {
	g := group{name: "GPU"}
	const without = "the driver's own totals are not known, so memory that no traced call shows is missing"
	switch {
	case errors.Is(in.err, gpu.ErrNoCgo):
		g.warn("NVML", "use a build with cgo", "this binary was built without cgo: %s", without)
		return g.checks
	case errors.Is(in.err, gpu.ErrNoLibrary):
		g.warn("NVML", "install the NVIDIA driver; in a container, use NVIDIA's container toolkit with the utility capability (NVIDIA_DRIVER_CAPABILITIES=compute,utility)",
			"no NVIDIA driver here: %v", in.err)
		return g.checks
	case in.err != nil:
		g.warn("NVML", "make nvidia-smi work: it fails for the same reason", "%v: %s", in.err, without)
		return g.checks
	}
	g.ok("NVML", "driver %s, CUDA %s", cmp.Or(in.driver, "not known"), cmp.Or(in.cuda, "not known"))
	switch {
	case in.devicesErr != nil:
		g.warn("GPUs", "make nvidia-smi work: it fails for the same reason", "%v", in.devicesErr)
	case len(in.devices) == 0:
		g.warn("GPUs", "give the container a GPU (--gpus all), or look into the kernel log", "none")
	}
	for _, d := range in.devices {
		checkDevice(&g, d)
		for _, i := range d.Instances {
			checkDevice(&g, i)
		}
	}
	return g.checks
}

func checkDevice(g *group, d gpu.Device) {
	name := "GPU " + d.Label()
	switch {
	case d.Reason != "":
		g.warn(name, "look into the kernel log for Xid messages, and reset the GPU or reboot", "does not answer: %s", d.Reason)
	case !d.Memory.Known:
		g.warn(name, "none known: bytes are traced all the same", "%s, %s, memory not known", d.Name, d.UUID)
	default:
		g.ok(name, "%s, %s, %s used of %s", d.Name, d.UUID, bytefmt.Format(d.Memory.Used), bytefmt.Format(d.Memory.Total))
	}
}
