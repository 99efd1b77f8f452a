package doctor

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// ioctl is the row of probes.Table by which libcuda calls the kernel driver.
const ioctl = "ioctl@plt"

// A physical is what watching the kernel driver's calls depends on.
type physical struct {
	driver   string   // version of the kernel driver, "" if not known
	absent   bool     // there is none
	stubless []string // libcudas whose calls cannot be probed, by path
}

// readPhysical asks the kernel driver itself where NVML does not say.
func readPhysical(g gpus, l libraries) physical {
	p := physical{driver: cmp.Or(g.driver, proc.DriverVersion())}
	p.absent = p.driver == "" && errors.Is(g.err, gpu.ErrNoLibrary)
	for r := range l.shown {
		if r.Level == probes.Driver && r.Err == nil && slices.Contains(r.Missing, ioctl) {
			p.stubless = append(p.stubless, r.Path)
		}
	}
	return p
}

func checkPhysical(p physical) []Check {
	g := group{name: "GPU"}
	const name, without = "physical layer", "the driver's own memory is shown as one line"
	switch {
	case p.absent:
	case p.driver == "":
		g.warn(name, "make nvidia-smi work", "the driver's version is not known: %s", without)
	case !probes.DriverKnown(p.driver):
		g.warn(name, probes.DriverFix, "the calls of driver %s are not known: %s", p.driver, without)
	case len(p.stubless) > 0:
		g.warn(name, "use NVIDIA's own libcuda", "driver %s, but its calls cannot be probed in %s: for processes that use this library, %s",
			p.driver, strings.Join(p.stubless, ", "), without)
	default:
		g.ok(name, "driver %s", p.driver)
	}
	return g.checks
}
