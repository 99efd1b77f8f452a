package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/render"
	"github.com/gpumemtrace/gpumemtrace/internal/source/gpu"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/snapshottest"
	"github.com/gpumemtrace/gpumemtrace/probes"
)

func features(err error, multi error) []probes.Feature {
	return []probes.Feature{
		{Name: "attach cookies", Since: "Linux 5.15", Err: err},
		{Name: "uprobe_multi links", Since: "Linux 6.6", Without: "probes go on one by one", Err: multi},
	}
}

var (
	h200    = gpu.Device{Index: 0, UUID: "GPU-1", Name: "NVIDIA H200", Minor: 0, Memory: gpu.Memory{Total: 150 << 30, Used: 610 << 20, Known: true}}
	silent  = gpu.Device{Index: 1, Reason: "nvmlDeviceGetHandleByIndex_v2: GPU is lost (15)", Minor: -1}
	root    = privileges{capabilities: 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_SYS_PTRACE, seccomp: "0", lockdown: "[none] integrity confidentiality", paranoid: "2"}
	started = trial{took: 1900 * time.Millisecond, trap: 700 * time.Nanosecond, call: call{frames: 12, memoized: true}}
)

// healthy is a machine on which all is well, and a process there.
func healthy() Report {
	cuda := probes.LibraryReport{
		Level: probes.Driver, Path: "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", Version: "580.159.04", BuildID: "0123abcd",
		PIDs: []int{17}, Found: []string{"cuMemAlloc_v2", "cuMemFree_v2"}, Missing: []string{"cuCtxCreate_v4"},
	}
	r := Report(checkKernel("6.8.0-51-generic", seccompErrors{}, features(nil, nil)))
	r = append(r, checkPrivileges(root, started)...)
	r = append(r, checkTracing(started)...)
	r = append(r, checkEnvironment(environment{pidNamespace: proc.InitialPID}, true)...)
	g := gpus{driver: "580.159.04", cuda: "13.0", devices: []gpu.Device{h200}}
	l := libraries{target: 17, reports: []probes.LibraryReport{cuda}, names: map[int]string{17: "python3"}}
	r = append(r, checkGPUs(g)...)
	r = append(r, checkPhysical(readPhysical(g, l))...)
	r = append(r, checkLibraries(l)...)
	return append(r, checkTarget(target{
		pid: 17, name: "python3", initial: true, numbers: []int{17}, python: "3.12", nvml: true,
		memory:   []deviceUse{{h200, gpu.ProcessUse{PID: 17, Bytes: 2 << 30, Known: true}, nil}},
		ordinals: []gpu.Device{h200},
	})...)
}

// broken is a container with little in it, and hostile names.
func broken() Report {
	p := privileges{missing: []string{"CAP_BPF (to load BPF programs)"}, foreignUser: true, seccomp: "2", lockdown: "none integrity [confidentiality]"}
	r := Report(checkKernel("5.4.0", seccompErrors{}, features(probes.ErrNotSupported, os.ErrPermission)))
	r = append(r, checkPrivileges(p, trial{err: probes.ErrPrivilege})...)
	r = append(r, checkTracing(trial{err: probes.ErrPrivilege})...)
	r = append(r, checkEnvironment(environment{bindNow: "1", pidNamespace: 1, debuginfod: []string{"https://me:secret@debuginfod.example"}}, true)...)
	r = append(r, checkGPUs(gpus{err: fmt.Errorf("open NVML: %w: libnvidia-ml.so.1: cannot open shared object file", gpu.ErrNoLibrary)})...)
	r = append(r, checkPhysical(physical{driver: "580.1", stubless: []string{"/tmp/\x1b[2J\u202e/libcuda.so.1"}})...)
	r = append(r, checkLibraries(libraries{
		reports: []probes.LibraryReport{
			{Level: probes.Driver, Path: "/tmp/\x1b[2J\u202e/libcuda.so.1", PIDs: []int{4, 5}, Err: fmt.Errorf("a 32-bit library: %w", probes.ErrNoSymbols)},
			{Level: probes.Driver, Path: "/usr/lib/libcuda.so.1", Found: []string{"cuMemAlloc_v2"}},
		},
		names:  map[int]string{4: "\x1b]0;owned\a", 5: "a\nb", 6: "init"},
		unread: map[int]error{6: os.ErrPermission},
	})...)
	return append(r, checkTarget(target{pid: 9, err: errors.New("trace process 9: there is no such process")})...)
}

func TestReport(t *testing.T) {
	for name, r := range map[string]Report{"healthy": healthy(), "broken": broken()} {
		var text, js bytes.Buffer
		if err := r.WriteText(&text, 0, false); err != nil {
			t.Fatal(err)
		}
		if err := r.WriteJSON(&js); err != nil {
			t.Fatal(err)
		}
		snapshottest.Golden(t, name+".txt", text.Bytes())
		snapshottest.Golden(t, name+".json", js.Bytes())
		if r.Failed() != (name == "broken") {
			t.Errorf("%s: Failed() = %t", name, r.Failed())
		}
		for _, out := range []string{text.String(), js.String()} {
			if bad := strings.IndexFunc(out, func(c rune) bool { return c != '\n' && render.Unsafe(c) }); bad >= 0 {
				t.Errorf("%s: unsafe at %q", name, out[bad:])
			}
			if strings.Contains(out, "secret") {
				t.Errorf("%s: shows a password", name)
			}
		}
		var back Report
		if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back) != len(r) {
			t.Errorf("%s: %d of %d checks come back: %v", name, len(back), len(r), err)
		}
		wellFormed(t, r)
	}
}

// wellFormed checks what holds for every report: a check's name is unique in
// its group, groups are together, and what is not ok has a fix.
func wellFormed(t *testing.T, r Report) {
	t.Helper()
	seen := map[[2]string]bool{}
	groups, last := map[string]bool{}, ""
	for _, c := range r {
		key := [2]string{c.Group, c.Check}
		if seen[key] {
			t.Errorf("%v comes twice", key)
		}
		seen[key] = true
		if c.Group != last && groups[c.Group] {
			t.Errorf("group %s is in pieces", c.Group)
		}
		groups[c.Group], last = true, c.Group
		if c.Group == "" || c.Check == "" || c.Detail == "" || (c.Fix == "") != (c.Status == OK) {
			t.Errorf("incomplete: %+v", c)
		}
	}
}

func TestEmptyJSON(t *testing.T) {
	var b bytes.Buffer
	if err := Report(nil).WriteJSON(&b); err != nil || b.String() != "[]\n" {
		t.Errorf("%q, %v", b.String(), err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, os.ErrClosed }

func TestWriteError(t *testing.T) {
	if err := healthy().WriteText(full{}, 80, true); !errors.Is(err, os.ErrClosed) {
		t.Errorf("text: %v", err)
	}
	if err := healthy().WriteJSON(full{}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("JSON: %v", err)
	}
}

// A path or a symbol must be readable whole, however narrow the page is.
func TestNothingIsCut(t *testing.T) {
	squeezed := func(s string) string { return strings.Join(strings.Fields(s), "") }
	path := "/usr/lib/" + strings.Repeat("x", 300) + "/libcuda.so.1"
	c := Check{"Libraries", "libcuda", Warn, "of a file " + path + " there are more", "use another than " + path}
	for _, width := range []int{20, 40, 80, 400} {
		var b bytes.Buffer
		if err := (Report{c}).WriteText(&b, width, false); err != nil {
			t.Fatal(err)
		}
		if out := squeezed(b.String()); !strings.Contains(out, squeezed(c.Detail)) || !strings.Contains(out, squeezed(c.Fix)) {
			t.Errorf("in %d columns:\n%s", width, &b)
		}
	}
}
