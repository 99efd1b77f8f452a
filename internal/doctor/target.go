package doctor

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A target is the process that the user asked about.
type target struct {
	pid  int
	name string
	err  error // it cannot be traced
	// initial: this process is in the initial PID namespace.
	initial bool
	numbers []int  // its pid in each PID namespace, from ours inwards
	python  string // "3.12", "" for none
	mapsErr error  // python is not known
	memory  []deviceUse
	// ordinals are the GPUs as the process numbers them.
	ordinals    []gpu.Device
	ordinalsErr error      // not known
	only        gpu.Device // the one that it uses, by a number not known
	nvml        bool       // NVML is there; else memory and ordinals are not known
}

// A deviceUse is what NVML says of the process on one GPU.
type deviceUse struct {
	device gpu.Device
	use    gpu.ProcessUse
	err    error
}

func readTarget(pid int, e environment, g gpus) target {
	t := target{
		pid: pid, err: probes.CheckTarget(pid),
		initial: e.pidNamespace == proc.InitialPID, nvml: g.err == nil && g.devicesErr == nil,
	}
	if t.err != nil {
		return t
	}
	t.name = proc.Comm(pid)
	status, _ := proc.ReadStatus(pid)
	t.numbers = status.Numbers
	t.python, t.mapsErr = readPython(pid)
	if t.nvml {
		t.readGPUs(g)
	}
	return t
}

// readGPUs asks on which GPUs the process holds memory, and what it calls them.
func (t *target) readGPUs(g gpus) {
	evidence, err := gpu.Look(t.pid)
	var listed []string
	certain := true
	for _, parent := range g.devices {
		for _, d := range append([]gpu.Device{parent}, parent.Instances...) {
			if d.MIG || d.UUID == "" {
				continue
			}
			uses, uerr := g.nvml.Processes(d)
			i := slices.IndexFunc(uses, func(u gpu.ProcessUse) bool { return u.PID == t.pid })
			certain = certain && uerr == nil && !slices.ContainsFunc(uses, func(u gpu.ProcessUse) bool { return u.PID == 0 })
			switch {
			case i >= 0:
				listed = append(listed, d.UUID)
				t.memory = append(t.memory, deviceUse{d, uses[i], nil})
			case err == nil && slices.Contains(evidence.Opened, d.Minor) && len(uses) > 0:
				// Perhaps listed under a pid of another namespace.
				use, uerr := g.nvml.Use(d, t.pid)
				t.memory = append(t.memory, deviceUse{d, use, uerr})
			}
		}
	}
	if err != nil {
		t.ordinalsErr = err
		return
	}
	openable := slices.DeleteFunc(slices.Clone(g.devices), func(d gpu.Device) bool { return !slices.Contains(evidence.Nodes, d.Minor) })
	t.ordinals, t.ordinalsErr = gpu.Ordinals(evidence.Env, openable)
	if !certain || len(listed) == 0 {
		return
	}
	// Where it holds memory must agree with what its environment says.
	evidence.Listed = listed
	for i, d := range t.ordinals {
		if slices.Contains(listed, d.UUID) {
			evidence.Used = append(evidence.Used, i)
		}
	}
	agrees := len(evidence.Used) > 0
	if !agrees {
		evidence.Used = []int{0} // by some number: one GPU is known all the same
	}
	known, err := gpu.Resolve(g.devices, evidence)
	if t.ordinalsErr = err; err == nil && !agrees {
		t.ordinals, t.only = nil, known[0]
	}
}

// readPython returns the version of the CPython that a process maps, "" for
// none.
func readPython(pid int) (version string, err error) {
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			return "", err
		}
		if v := pythonVersion(m.Name()); m.HasFile() && v != "" {
			return v, nil
		}
	}
	return "", nil
}

// pythonFile is what the unwinder takes for CPython (its interpreter/python).
var pythonFile = regexp.MustCompile(`^(?:python|libpython)(\d\.\d+)`)

// pythonVersion returns the version that a file's name tells, "" if it is not
// named like CPython.
func pythonVersion(file string) string {
	if m := pythonFile.FindStringSubmatch(path.Base(file)); m != nil {
		return m[1]
	}
	return ""
}

// The CPython versions that the unwinder knows (its interpreter/python).
const oldestPython, newestPython = 6, 14 // 3.x

func checkTarget(t target) []Check {
	g := group{name: "Process"}
	if t.err != nil {
		fix := "take the pid from ps or nvidia-smi"
		if !t.initial {
			fix = "take the pid from ps in this container, or share the host's PID namespace (--pid=host, hostPID: true)"
		}
		g.fail("process", fix, "%v", t.err)
		return g.checks
	}
	g.ok("process", "%d (%s)", t.pid, t.name)
	switch n := len(t.numbers); {
	case n == 0:
		g.warn("PID namespace", "none known", "not known: the kernel does not report it")
	case n == 1:
		g.ok("PID namespace", "the same as gpumemtrace's")
	default:
		g.ok("PID namespace", "a container's, inside gpumemtrace's: there the process has PID %d", t.numbers[n-1])
	}
	checkPython(&g, t)
	checkMemory(&g, t)
	checkOrdinals(&g, t)
	return g.checks
}

func checkPython(g *group, t target) {
	minor := 0
	if v, ok := strings.CutPrefix(t.python, "3."); ok {
		minor, _ = strconv.Atoi(v)
	}
	switch {
	case t.mapsErr != nil:
		g.warn("Python", "run as root, or grant CAP_SYS_PTRACE", "not known: %v", t.mapsErr)
	case t.python == "":
		g.ok("Python", "none mapped: stacks are native")
	case minor < oldestPython || minor > newestPython:
		g.warn("Python", fmt.Sprintf("use CPython 3.%d to 3.%d", oldestPython, newestPython),
			"CPython %s, which the unwinder does not know: stacks show the interpreter's own frames", t.python)
	default:
		g.ok("Python", "CPython %s", t.python)
	}
}

const needsNVML = "see NVML above"

func checkMemory(g *group, t target) {
	const name = "GPU memory"
	switch {
	case !t.nvml:
		g.warn(name, needsNVML, "not known without NVML")
		return
	case len(t.memory) == 0:
		g.ok(name, "NVML lists the process on no GPU: it holds no memory there yet")
		return
	}
	for _, m := range t.memory {
		name := name + " on GPU " + m.device.Label()
		switch {
		case m.err != nil:
			g.warn(name, "make nvidia-smi list processes here", "not known: %v", m.err)
		case !m.use.Known:
			g.warn(name, "run gpumemtrace in the host's PID namespace (--pid=host, hostPID: true)",
				"not known: NVML reports no figure for this process")
		case m.use.Inferred:
			g.ok(name, "%s, inferred: no other process can hold it", bytefmt.Format(m.use.Bytes))
		default:
			g.ok(name, "%s", bytefmt.Format(m.use.Bytes))
		}
	}
}

func checkOrdinals(g *group, t target) {
	const name = "device ordinals"
	switch {
	case !t.nvml:
		g.warn(name, needsNVML, "not known without NVML: GPUs are shown as the process numbers them")
	case errors.Is(t.ordinalsErr, gpu.ErrUnknown):
		g.warn(name, "set CUDA_DEVICE_ORDER=PCI_BUS_ID and CUDA_VISIBLE_DEVICES before the program starts", "%v", t.ordinalsErr)
	case t.ordinalsErr != nil:
		g.warn(name, "run as root, or grant CAP_SYS_PTRACE", "%v", t.ordinalsErr)
	case t.only.UUID != "":
		g.ok(name, "the process uses only GPU %s (%s), whatever number it has for that GPU", t.only.Label(), t.only.Name)
	case len(t.ordinals) == 0:
		g.warn(name, "look at the process's CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER, and at /dev/nvidia* where it runs", "CUDA shows no GPU to the process")
	default:
		var names []string
		for i, d := range t.ordinals {
			names = append(names, fmt.Sprintf("%d is GPU %s (%s)", i, d.Label(), d.Name))
		}
		g.ok(name, "%s", strings.Join(names, ", "))
	}
}
