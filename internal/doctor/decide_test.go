package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/unwind"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

// A want is what one check must say: its status, and a part of its detail and
// fix. An empty status means that there is no such check.
type want struct {
	check  string
	status Status
	detail string
	fix    string
}

func (w want) verify(t *testing.T, checks []Check) {
	t.Helper()
	for _, c := range checks {
		if c.Check != w.check {
			continue
		}
		if c.Status != w.status || !strings.Contains(c.Detail, w.detail) || !strings.Contains(c.Fix, w.fix) {
			t.Errorf("got %+v\nwant %+v", c, w)
		}
		return
	}
	if w.status != "" {
		t.Errorf("no check %q in %+v", w.check, checks)
	}
}

type decision struct {
	name   string
	checks []Check
	want
}

func decide(t *testing.T, decisions []decision) {
	for _, d := range decisions {
		t.Run(d.name, func(t *testing.T) {
			wellFormed(t, d.checks)
			d.verify(t, d.checks)
		})
	}
}

func TestKernel(t *testing.T) {
	kernel := func(release string, err, multi error) []Check {
		return checkKernel(release, seccompErrors{}, features(err, multi))
	}
	seccomp := func(e seccompErrors) []Check { return checkKernel("6.12.9", e, nil) }
	decide(t, []decision{
		{"old", kernel("5.14.0-503.el9", nil, nil), want{"version", Warn, "5.14", "5.15"}},
		{"oldest", kernel("5.15.0", nil, nil), want{"version", OK, "5.15.0", ""}},
		{"new", kernel("10.1.2", nil, nil), want{"version", OK, "10.1.2", ""}},
		{"odd", kernel("gVisor", nil, nil), want{"version", Warn, "gVisor", ""}},
		{"lacks one", kernel("5.15.0", fmt.Errorf("x: %w", probes.ErrNotSupported), nil), want{"attach cookies", Fail, "not in this", "Linux 5.15"}},
		{"lacks an optional one", kernel("5.15.0", nil, probes.ErrNotSupported), want{"uprobe_multi links", Warn, "one by one", "Linux 6.6"}},
		{"not allowed to ask", kernel("5.15.0", fmt.Errorf("x: %w", unix.EPERM), nil), want{"attach cookies", Warn, "CAP_BPF", "root"}},
		{"harmless", seccomp(seccompErrors{}), want{"return probes", OK, "harmless", ""}},
		{"harm confined", seccomp(seccompErrors{all: unix.EPERM}), want{"return probes", Warn, "--no-follow", "6.12.14"}},
		{"harm", seccomp(seccompErrors{all: unix.EPERM, one: unix.EPERM}), want{"return probes", Fail, "nothing is traced", "6.13.3"}},
		{"strange answer", kernel("5.15.0", unix.ENOMEM, nil), want{"attach cookies", Warn, "cannot allocate", ""}},
	})
}

func TestPrivileges(t *testing.T) {
	with := func(change func(*privileges)) privileges {
		p := root
		change(&p)
		return p
	}
	seccomp := with(func(p *privileges) { p.seccomp = "2" })
	locked := with(func(p *privileges) { p.lockdown = "none integrity [confidentiality]" })
	bare := with(func(p *privileges) { p.capabilities = 0 })
	refused := trial{err: unix.EPERM}
	decide(t, []decision{
		{"root", checkPrivileges(root, started), want{"capabilities", OK, "all", ""}},
		{"one missing", checkPrivileges(privileges{missing: []string{"CAP_BPF (to load)"}}, started), want{"CAP_BPF", Fail, "to load", "grant CAP_BPF"}},
		{"one missing is not all there", checkPrivileges(privileges{missing: []string{"CAP_BPF (to load)"}}, started), want{check: "capabilities"}},
		{"no /proc", checkPrivileges(privileges{missingErr: os.ErrNotExist}, started), want{"capabilities", Warn, "not exist", "/proc"}},
		{"CAP_SYS_ADMIN stands in", checkPrivileges(root, started), want{"CAP_CHECKPOINT_RESTORE", OK, "granted", ""}},
		{"no map_files", checkPrivileges(bare, started), want{"CAP_CHECKPOINT_RESTORE", Warn, "deleted", "CAP_CHECKPOINT_RESTORE"}},
		{"rootless", checkPrivileges(with(func(p *privileges) { p.foreignUser = true }), refused), want{"user namespace", Warn, "not the initial", "outside"}},
		{"seccomp that lets pass", checkPrivileges(seccomp, started), want{"seccomp", OK, "it allows tracing", ""}},
		{"seccomp that may refuse", checkPrivileges(seccomp, refused), want{"seccomp", Warn, "may be why", "seccomp=unconfined"}},
		{"seccomp unknown yet", checkPrivileges(seccomp, trial{err: probes.ErrPrivilege}), want{"seccomp", OK, "doctor shows whether it allows tracing", ""}},
		{"lockdown", checkPrivileges(locked, started), want{"lockdown", Warn, "stacks may end", "integrity"}},
		{"lockdown that may refuse", checkPrivileges(locked, refused), want{"lockdown", Warn, "may not read", "integrity"}},
		{"integrity", checkPrivileges(with(func(p *privileges) { p.lockdown = "none [integrity] confidentiality" }), started), want{"lockdown", OK, "integrity", ""}},
		{"no lockdown", checkPrivileges(with(func(p *privileges) { p.lockdown = "" }), started), want{"lockdown", OK, "not", ""}},
		{"no perf", checkPrivileges(with(func(p *privileges) { p.paranoid = "" }), started), want{"perf_event_paranoid", Warn, "no perf", "CONFIG_PERF_EVENTS"}},
		{"paranoid", checkPrivileges(with(func(p *privileges) { p.paranoid = "2" }), started), want{"perf_event_paranoid", OK, "2", ""}},
		{"more paranoid", checkPrivileges(with(func(p *privileges) { p.paranoid, p.capabilities = "3", 1<<unix.CAP_PERFMON }), started), want{"perf_event_paranoid", Warn, "3", "CAP_SYS_ADMIN"}},
		{"more paranoid, root", checkPrivileges(privileges{paranoid: "3", capabilities: 1 << unix.CAP_SYS_ADMIN}, started), want{"perf_event_paranoid", OK, "3", ""}},
	})
}

func TestTracing(t *testing.T) {
	decide(t, []decision{
		{"starts", checkTracing(trial{took: 1960 * time.Millisecond}), want{"trial start", OK, "2.0 s", ""}},
		{"complete stacks", checkTracing(started), want{"stacks", OK, "native and Python: the 12 frames", ""}},
		{"call not seen", checkTracing(trial{call: call{err: unix.EIO}}), want{"stacks", Warn, "could not be traced: input/output error", "report"}},
		{"stack not complete", checkTracing(trial{call: call{frames: 3, why: unwind.ErrFramePointers}}), want{"stacks", Warn, "has 3 frames: followed frame pointers only", "report"}},
		{"cost without the unwinder", checkTracing(trial{stacks: unix.E2BIG, trap: 19 * time.Microsecond}), want{"cost", OK, "two traps, each 19.0 µs here", ""}},
		{"memo does not know", checkTracing(trial{call: call{frames: 12}}), want{"stacks", Warn, "the memo does not recognize a repeated stack", "report"}},
		{"cost", checkTracing(started), want{"cost", OK, "two traps, each 0.7 µs here, and BPF programs take " + programCost, ""}},
		{"no privilege", checkTracing(trial{err: fmt.Errorf("%w: run", probes.ErrPrivilege)}), want{"trial start", Fail, "privilege", "root"}},
		{"refused", checkTracing(trial{err: unix.EINVAL}), want{"trial start", Fail, "invalid argument", "not ok"}},
		{"no stacks if refused", checkTracing(trial{err: unix.EINVAL}), want{check: "stacks"}},
		{"unwinder not allowed", checkTracing(trial{stacks: fmt.Errorf("x: %w", unix.EPERM)}), want{"stacks", Warn, "frame pointers", "seccomp"}},
		{"unwinder refused", checkTracing(trial{stacks: unix.E2BIG}), want{"stacks", Warn, "argument list too long", "report"}},
		{"cost by frame pointers", checkTracing(trial{stacks: unix.E2BIG, trap: 19 * time.Microsecond}), want{"cost", OK, "each 19.0 µs here", ""}},
		{"cost not known", checkTracing(trial{trapErr: unix.ENODEV}), want{"cost", Warn, "no such device", "report"}},
		{"stays", checkTracing(trial{end: errors.New("busy")}), want{"trial start", Warn, "busy", "report"}},
	})
}

func TestEnvironment(t *testing.T) {
	urls := func(s ...string) []Check { return checkEnvironment(environment{debuginfod: s}, true) }
	decide(t, []decision{
		{"bind now", checkEnvironment(environment{bindNow: "1"}, true), want{"LD_BIND_NOW", Fail, "symbol lookup", "unset"}},
		{"bind now without cgo", checkEnvironment(environment{bindNow: "1"}, false), want{"LD_BIND_NOW", OK, "not matter", ""}},
		{"bind lazily", checkEnvironment(environment{}, true), want{"LD_BIND_NOW", OK, "not set", ""}},
		{"initial", checkEnvironment(environment{pidNamespace: proc.InitialPID}, true), want{"PID namespace", OK, "initial", ""}},
		{"container", checkEnvironment(environment{pidNamespace: 4026532000}, true), want{"PID namespace", OK, "hostPID", ""}},
		{"no /proc", checkEnvironment(environment{}, true), want{"PID namespace", Warn, "not known", "/proc"}},
		{"no debuginfod", urls(), want{"debuginfod", OK, "off", ""}},
		{"debuginfod", urls("https://a.example/", "http://b.example"), want{"debuginfod", OK, "https://a.example/, http://b.example", ""}},
		{"password", urls("https://u:p@a.example"), want{"debuginfod", OK, "u:xxxxx@", ""}},
		{"no URL", urls("a.example"), want{"debuginfod", Warn, "not the URL of a server", "http"}},
		{"no server", urls("file:///etc"), want{"debuginfod", Warn, "not the URL of a server", "http"}},
	})
}

func TestPhysical(t *testing.T) {
	const one = "the driver's own memory is shown as one line"
	check := func(g gpus, target int, l ...probes.LibraryReport) []Check {
		return checkPhysical(readPhysical(g, libraries{target: target, reports: l}))
	}
	lib := func(change func(*probes.LibraryReport)) probes.LibraryReport {
		r := probes.LibraryReport{Level: probes.Driver, Path: "/a/libcuda.so.1", PIDs: []int{17}}
		change(&r)
		return r
	}
	lacks := []string{"cuCtxCreate_v4", ioctl}
	watched := lib(func(r *probes.LibraryReport) { r.Missing = lacks[:1] })
	bare := lib(func(r *probes.LibraryReport) { r.Missing = lacks })
	installed := lib(func(r *probes.LibraryReport) { r.Missing, r.PIDs = lacks, nil })
	unread := lib(func(r *probes.LibraryReport) { r.Missing, r.Err = lacks, unix.EACCES })
	runtime := lib(func(r *probes.LibraryReport) { r.Missing, r.Level = lacks, probes.Runtime })
	if !slices.ContainsFunc(probes.Entries[1:], func(e probes.Entry) bool { return e.Level == probes.Driver && e.Symbol == ioctl }) {
		t.Errorf("no row is named %s", ioctl)
	}
	known := gpus{driver: "580.159.04"}
	decide(t, []decision{
		{"known", check(known, 0, watched), want{"physical layer", OK, "driver 580.159.04", ""}},
		{"no library", check(known, 0), want{"physical layer", OK, "driver 580.159.04", ""}},
		{"too old", check(gpus{driver: "470.1"}, 0, watched), want{"physical layer", Warn, "the calls of driver 470.1 are not known: " + one, "535"}},
		{"too new", check(gpus{driver: "600.1"}, 0, bare), want{"physical layer", Warn, "the calls of driver 600.1 are not known: " + one, "later gpumemtrace"}},
		{"not a version", check(gpus{driver: "580"}, 0), want{"physical layer", Warn, "the calls of driver 580 are not known", "535"}},
		{"no stub", check(known, 0, watched, bare), want{"physical layer", Warn, "/a/libcuda.so.1: for processes that use this library, " + one, "NVIDIA's own"}},
		{"the target's has none", check(known, 17, bare), want{"physical layer", Warn, "its calls cannot be probed in", "NVIDIA's own"}},
		{"another's has none", check(known, 17, installed, watched), want{"physical layer", OK, "", ""}},
		{"only libcuda counts", check(known, 0, runtime), want{"physical layer", OK, "", ""}},
		{"not readable", check(known, 0, unread), want{"physical layer", OK, "", ""}},
		{"silent", checkPhysical(physical{}), want{"physical layer", Warn, "version is not known: " + one, "nvidia-smi"}},
		{"no driver", checkPhysical(physical{absent: true}), want{check: "physical layer"}},
	})
}

func TestGPUs(t *testing.T) {
	mig := h200
	mig.MIG, mig.Instances = true, []gpu.Device{{Index: 2, UUID: "MIG-1", Name: "NVIDIA H200 MIG 1g", Parent: "GPU-1", Memory: gpu.Memory{Total: 18 << 30, Known: true}}}
	blind := h200
	blind.Memory = gpu.Memory{}
	on := func(d ...gpu.Device) []Check { return checkGPUs(gpus{driver: "580.1", cuda: "13.0", devices: d}) }
	decide(t, []decision{
		{"no cgo", checkGPUs(gpus{err: fmt.Errorf("open: %w", gpu.ErrNoCgo)}), want{"NVML", Warn, "without cgo", "with cgo"}},
		{"no library", checkGPUs(gpus{err: fmt.Errorf("open: %w: no file", gpu.ErrNoLibrary)}), want{"NVML", Warn, "no file", "toolkit"}},
		{"mismatch", checkGPUs(gpus{err: errors.New("Driver/library version mismatch (18)")}), want{"NVML", Warn, "mismatch", "nvidia-smi"}},
		{"there", on(h200), want{"NVML", OK, "driver 580.1, CUDA 13.0", ""}},
		{"tells little", checkGPUs(gpus{devices: []gpu.Device{h200}}), want{"NVML", OK, "driver not known, CUDA not known", ""}},
		{"device", on(h200), want{"GPU 0", OK, "NVIDIA H200, GPU-1, 610 MiB used of 150 GiB", ""}},
		{"silent", on(h200, silent), want{"GPU 1", Warn, "GPU is lost", "Xid"}},
		{"memory not known", on(blind), want{"GPU 0", Warn, "not known", ""}},
		{"instance", on(mig), want{"GPU 0:2", OK, "MIG-1", ""}},
		{"none", on(), want{"GPUs", Warn, "none", "--gpus"}},
		{"no list", checkGPUs(gpus{devicesErr: errors.New("unknown error")}), want{"GPUs", Warn, "unknown error", "nvidia-smi"}},
	})
}

func TestLibraries(t *testing.T) {
	good := probes.LibraryReport{Level: probes.Driver, Path: "/a/libcuda.so.580.1", Version: "580.1", BuildID: "abcd", PIDs: []int{17},
		Found: required, Missing: []string{"cuMemCreate", "cuMemMap"}}
	with := func(change func(*probes.LibraryReport)) probes.LibraryReport {
		r := good
		change(&r)
		return r
	}
	narrow := with(func(r *probes.LibraryReport) { r.Err = fmt.Errorf("a 32-bit library: %w", probes.ErrNoSymbols) })
	closed := with(func(r *probes.LibraryReport) { r.Err = os.ErrPermission })
	odd := with(func(r *probes.LibraryReport) { r.Found = required[:1] })
	later := with(func(r *probes.LibraryReport) { r.Unlisted = []string{"cuMemAlloc_v3", "cuMemCreate_v2"} })
	muchLater := with(func(r *probes.LibraryReport) {
		for i := range maxShown + 2 {
			r.Unlisted = append(r.Unlisted, fmt.Sprintf("cu%dCreate", i))
		}
	})
	installed := with(func(r *probes.LibraryReport) { r.PIDs = nil })
	runtime := with(func(r *probes.LibraryReport) { r.Level, r.Path = probes.Runtime, "/a/libcudart.so.12" })
	runtimeClosed := with(func(r *probes.LibraryReport) { r.Level, r.Err = probes.Runtime, os.ErrPermission })
	torch := with(func(r *probes.LibraryReport) {
		r.Level, r.Path, r.Found = probes.Torch, "/t/libc10.so", []string{"_ZN3c10"}
	})
	tensors := with(func(r *probes.LibraryReport) {
		r.Level, r.Path, r.Found = probes.Torch, "/t/libc10.so", []string{"_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"}
	})
	many := with(func(r *probes.LibraryReport) { r.PIDs = []int{17, 18, 19, 20, 21, 22, 23} })
	names := map[int]string{17: "python3"}
	all := func(r ...probes.LibraryReport) []Check { return checkLibraries(libraries{reports: r, names: names}) }
	one := func(r ...probes.LibraryReport) []Check {
		return checkLibraries(libraries{target: 17, reports: r, names: names})
	}
	unread := func(target int, ptrace bool) []Check {
		return checkLibraries(libraries{target: target, ptrace: ptrace, names: names, unread: map[int]error{17: os.ErrPermission}})
	}
	decide(t, []decision{
		{"version", all(good), want{"libcuda", OK, "/a/libcuda.so.580.1 (version 580.1, build id abcd, used by 17 (python3))", ""}},
		{"missing by name", all(good), want{"libcuda", OK, "2 of 4 functions; this version has no cuMemCreate, cuMemMap", ""}},
		{"the target's", one(good), want{"libcuda", OK, "(version 580.1, build id abcd)", ""}},
		{"two", all(good, good), want{"libcuda 2", OK, "580.1", ""}},
		{"many users", all(many), want{"libcuda", OK, "21 (), 2 more", ""}},
		{"32-bit", all(narrow), want{"libcuda", Warn, "32-bit", "64-bit"}},
		{"32-bit target", one(narrow), want{"libcuda", Fail, "32-bit", "64-bit"}},
		{"closed", one(closed), want{"libcuda", Fail, "permission", "CAP_CHECKPOINT_RESTORE"}},
		{"no driver's", all(odd), want{"libcuda", Warn, "lacks cuMemFree_v2", "NVIDIA"}},
		{"later driver's", all(later), want{"libcuda", Warn, "2 of 4 functions; this version has no cuMemCreate, cuMemMap; gpumemtrace does not know cuMemAlloc_v3, cuMemCreate_v2,", "newer gpumemtrace"}},
		{"much later driver's", all(muchLater), want{"libcuda", Warn, "does not know cu0Create, cu1Create, cu2Create, cu3Create, cu4Create, 2 more,", "newer gpumemtrace"}},
		{"installed", all(installed), want{"libcuda", OK, "installed", ""}},
		{"installed, not used", all(installed), want{"libcuda in use", OK, "no process", ""}},
		{"installed is not the target's", one(installed), want{"libcuda", Warn, "not use it yet", "waits"}},
		{"runtime", all(runtime), want{"libcudart", OK, "libcudart.so.12", ""}},
		{"runtime alone", all(runtime), want{"libcuda in use", OK, "no process", ""}},
		{"closed runtime", all(runtimeClosed), want{"libcudart", OK, "not needed", ""}},
		{"torch", one(good, torch), want{"libc10", OK, "out of memory but does not report tensors", ""}},
		{"torch with tensors", one(good, tensors), want{"libc10", OK, "reports tensors", ""}},
		{"none", one(), want{"libcuda", Warn, "not use it yet", "waits"}},
		{"unread target", unread(17, false), want{"mappings", Fail, "permission", "CAP_SYS_PTRACE"}},
		{"unread target is no news of libcuda", unread(17, false), want{check: "libcuda"}},
		{"unread other", unread(0, false), want{"mappings", Warn, "17 (python3)", "CAP_SYS_PTRACE"}},
		{"protected other", unread(0, true), want{"mappings", Warn, "17 (python3)", "security module"}},
	})
}

func TestTarget(t *testing.T) {
	with := func(change func(*target)) []Check {
		tg := target{pid: 17, name: "python3", initial: true, numbers: []int{17}, python: "3.12", nvml: true, ordinals: []gpu.Device{h200}}
		change(&tg)
		return checkTarget(tg)
	}
	python := func(v string) []Check { return with(func(tg *target) { tg.python = v }) }
	use := func(u gpu.ProcessUse, err error) []Check {
		return with(func(tg *target) { tg.memory = []deviceUse{{h200, u, err}} })
	}
	blind := with(func(tg *target) { tg.nvml = false })
	gone := errors.New("there is no such process")
	decide(t, []decision{
		{"there", with(func(*target) {}), want{"process", OK, "17 (python3)", ""}},
		{"gone", with(func(tg *target) { tg.err = gone }), want{"process", Fail, "no such", "ps"}},
		{"gone, in a container", with(func(tg *target) { tg.err, tg.initial = gone, false }), want{"process", Fail, "no such", "hostPID"}},
		{"gone, nothing more", with(func(tg *target) { tg.err = gone }), want{check: "Python"}},
		{"same namespace", with(func(*target) {}), want{"PID namespace", OK, "same", ""}},
		{"child namespace", with(func(tg *target) { tg.numbers = []int{17, 3, 1} }), want{"PID namespace", OK, "there the process has PID 1", ""}},
		{"no NSpid", with(func(tg *target) { tg.numbers = nil }), want{"PID namespace", Warn, "not report it", ""}},
		{"CPython", python("3.12"), want{"Python", OK, "3.12", ""}},
		{"oldest", python("3.6"), want{"Python", OK, "3.6", ""}},
		{"too old", python("3.5"), want{"Python", Warn, "3.5", "3.6 to 3.14"}},
		{"2", python("2.7"), want{"Python", Warn, "2.7", "3.6"}},
		{"newest", python("3.14"), want{"Python", OK, "3.14", ""}},
		{"too new", python("3.15"), want{"Python", Warn, "3.15", "3.14"}},
		{"native", python(""), want{"Python", OK, "native", ""}},
		{"maps closed", with(func(tg *target) { tg.mapsErr = os.ErrPermission }), want{"Python", Warn, "permission", "CAP_SYS_PTRACE"}},
		{"no NVML, no memory", blind, want{"GPU memory", Warn, "without NVML", ""}},
		{"no NVML, no ordinals", blind, want{"device ordinals", Warn, "without NVML", ""}},
		{"nothing held", with(func(*target) {}), want{"GPU memory", OK, "no memory there yet", ""}},
		{"held", use(gpu.ProcessUse{Bytes: 2 << 30, Known: true}, nil), want{"GPU memory on GPU 0", OK, "2.00 GiB", ""}},
		{"inferred", use(gpu.ProcessUse{Bytes: 2 << 30, Known: true, Inferred: true}, nil), want{"GPU memory on GPU 0", OK, "inferred", ""}},
		{"not told", use(gpu.ProcessUse{}, nil), want{"GPU memory on GPU 0", Warn, "not known", "hostPID"}},
		{"failed", use(gpu.ProcessUse{}, gpu.ErrUnsupported), want{"GPU memory on GPU 0", Warn, "not supported", "nvidia-smi"}},
		{"ordinals", with(func(*target) {}), want{"device ordinals", OK, "0 is GPU 0 (NVIDIA H200)", ""}},
		{"no ordinals", with(func(tg *target) { tg.ordinals = nil }), want{"device ordinals", Warn, "no GPU", "CUDA_VISIBLE_DEVICES"}},
		{"one GPU", with(func(tg *target) { tg.ordinals, tg.only = nil, h200 }), want{"device ordinals", OK, "uses only GPU 0 (NVIDIA H200)", ""}},
		{"ordinals not known", with(func(tg *target) { tg.ordinalsErr = fmt.Errorf("order: %w", gpu.ErrUnknown) }), want{"device ordinals", Warn, "not known", "PCI_BUS_ID"}},
		{"ordinals closed", with(func(tg *target) { tg.ordinalsErr = os.ErrPermission }), want{"device ordinals", Warn, "permission", "root"}},
	})
}

func TestPythonVersion(t *testing.T) {
	for file, want := range map[string]string{
		"/usr/bin/python3.11":                      "3.11",
		"/opt/lib/libpython3.12.so.1.0":            "3.12",
		"/usr/bin/python3.7m":                      "3.7",
		"/usr/bin/python2.7":                       "2.7",
		"/usr/lib/python3.11/lib-dynload/_json.so": "",
		"/usr/bin/mypython3.11":                    "",
		"/tmp/a\npython3.11":                       "",
		"":                                         "",
	} {
		if got := pythonVersion(file); got != want {
			t.Errorf("%q: %q, want %q", file, got, want)
		}
	}
}

func FuzzPythonVersion(f *testing.F) {
	f.Add("/usr/bin/python3.11")
	f.Add("/opt/libpython3.9999999999999999999.so")
	f.Fuzz(func(t *testing.T, file string) {
		wellFormed(t, checkTarget(target{python: pythonVersion(file), numbers: []int{1}}))
	})
}
