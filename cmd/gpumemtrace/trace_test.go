package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/pprof/profile"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/viewertest"
)

// What each workload below leaves live.
const (
	objects = 23
	bytes23 = objects * 4096
)

var leave23 = fmt.Sprintf("repeat %d cuMemAlloc_v2 4096", objects)

func readPprof(t *testing.T, text []byte) *profile.Profile {
	t.Helper()
	p, err := profile.ParseData(text)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.CheckValid(); err != nil {
		t.Fatal(err)
	}
	return p
}

// allocated returns the samples of device memory that a program asked for: what the
// kernel driver handed out beyond is of other kinds.
func allocated(p *profile.Profile) []*profile.Sample {
	return slices.DeleteFunc(slices.Clone(p.Sample), func(s *profile.Sample) bool { return s.Label["kind"][0] != "device" })
}

// inuse sums the last two sample types, which are objects and bytes in use, of what
// the program asked for.
func inuse(t *testing.T, text []byte) (objects, bytes int64) {
	t.Helper()
	p := readPprof(t, text)
	if n := len(p.SampleType); n != 6 || p.SampleType[3].Type != "inuse_objects" || p.SampleType[4].Type != "inuse_space" || p.SampleType[5].Type != "host_space" {
		t.Fatalf("sample types %v", p.SampleType)
	}
	for _, s := range allocated(p) {
		objects += s.Value[3]
		bytes += s.Value[4]
	}
	return objects, bytes
}

func want23(t *testing.T, text []byte) {
	t.Helper()
	if o, b := inuse(t, text); o != objects || b != bytes23 {
		t.Errorf("%d objects, %d bytes, want %d and %d", o, b, objects, bytes23)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The main job: attach, Ctrl-C, a profile that go tool pprof opens.
func TestInterruptWritesProfile(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p))
	script(t, p, "via lr "+leave23)
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	files, err := filepath.Glob(filepath.Join(v.cmd.Dir, "gpumemtrace-*.pb.gz"))
	if err != nil || len(files) != 1 {
		t.Fatalf("files %q, %v", files, err)
	}
	want23(t, read(t, files[0]))
	stderr := v.stderr.String()
	for _, want := range []string{"tracing pid " + pid(p) + " (workload)", "Ctrl-C", "Wrote " + filepath.Base(files[0]), "go tool pprof"} {
		if !strings.Contains(stderr, want) {
			t.Errorf("stderr lacks %q:\n%s", want, stderr)
		}
	}
	if v.stdout.String() != "" {
		t.Errorf("stdout %q", v.stdout.String())
	}
	for _, view := range [][]string{{"-top"}, {"-peek", "via_left"}, {"-tags"}, {"-top", "-sample_index=alloc_space"}, {"-top", "-diff_base", files[0]}} {
		out, err := exec.Command("go", append(append([]string{"tool", "pprof"}, view...), files[0])...).CombinedOutput()
		if err != nil {
			t.Errorf("go tool pprof %s: %v\n%s", view, err, out)
		}
		if view[0] == "-top" && len(view) < 3 && !strings.Contains(string(out), "cuMemAlloc_v2") {
			t.Errorf("go tool pprof %s:\n%s", view, out)
		}
	}
}

// Complete stacks, by default, of a program without frame pointers.
func TestUnwoundByDefault(t *testing.T) {
	needTracing(t)
	p := workload(t, testcuda.WorkloadNoFP, testcuda.Options{Libs: testcuda.LibsNoFP}, "cudaMalloc")
	v := tracing(t, "-p", pid(p), "-o", "x.folded", "--stacks", "auto")
	script(t, p, "via lrl cudaMalloc 1000")
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	text := string(read(t, filepath.Join(v.cmd.Dir, "x.folded")))
	if !regexp.MustCompile(`(?m)^.*_start;.*main;.*via_left;(via;)?via_right;(via;)?via_left;.*cudaMalloc;cuMemAlloc_v2 1000$`).MatchString(text) {
		t.Errorf("folded:\n%s\nstderr:\n%s", text, v.stderr.String())
	}
}

// A command is traced from its first call, and its exit code becomes ours.
func TestCommandsExitCode(t *testing.T) {
	kit := testcuda.Get(t)
	for script, want := range map[string]int{
		leave23:              0,
		leave23 + ";exit 7":  7,
		leave23 + ";kill 9":  128 + 9,
		leave23 + ";kill 11": 128 + 11,
	} {
		t.Run(script, func(t *testing.T) {
			needTracing(t)
			for _, program := range []testcuda.Program{testcuda.Workload, testcuda.WorkloadLate} {
				v := command(t, "--stacks", "fp", "-o", "x.pb.gz", "--", kit.Path(program), script)
				v.cmd.Env = append(os.Environ(), kit.Env(testcuda.LibsDefault)...)
				v.start().ends(want)
				p := readPprof(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
				var n int64
				for _, s := range allocated(p) {
					n += s.Value[0]
				}
				if n != objects {
					t.Errorf("%s: %d allocations, want %d", program, n, objects)
				}
			}
		})
	}
}

// A command is traced from its first call, so the sum of what it took is all that it
// holds, with NVML and without.
func TestCommandsTotal(t *testing.T) {
	needTracing(t)
	kit := testcuda.Get(t)
	for _, program := range []testcuda.Program{testcuda.Workload, testcuda.WorkloadLate} {
		v := command(t, "--stacks", "fp", "-o", "x.txt", "--", kit.Path(program), leave23)
		v.cmd.Env = append(os.Environ(), kit.Env(testcuda.LibsDefault)...)
		v.start().ends(exitDone)
		text := read(t, filepath.Join(v.cmd.Dir, "x.txt"))
		if !regexp.MustCompile(`(?m)\(\d+\) on GPU \S+ at the end: [0-9.]+ [KMG]iB$`).Match(text) {
			t.Errorf("%s: no total:\n%s", program, text)
		}
	}
}

// NVML's total shows what was allocated before the trace. Without it, a trace that comes
// late says that this memory is missing; of a command none is.
func TestLateWithoutNVML(t *testing.T) {
	needTracing(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "libnvidia-ml.so.1"), []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	for _, target := range [][]string{{"-p", pid(p)}, {"--", "true"}} {
		v := command(t, append([]string{"--stacks", "fp", "-d", "100ms", "-o", "x.txt"}, target...)...)
		v.cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
		v.start().ends(exitDone)
		const missing = "memory that a process allocated before the trace is missing from its figures"
		late := target[0] == "-p"
		if said := strings.Contains(v.stderr.String(), missing); said != late {
			t.Errorf("%s: %s", target, v.stderr.String())
		}
		page := strings.Join(strings.Fields(string(read(t, filepath.Join(v.cmd.Dir, "x.txt")))), " ")
		if said := strings.Contains(page, missing); said != late {
			t.Errorf("%s: %s", target, page)
		}
	}
}

// The command's streams are the user's, and a profile for stdout waits for it.
func TestCommandsStreams(t *testing.T) {
	needTracing(t)
	v := command(t, "--stacks", "fp", "-q", "-o", "x.pb.gz", "--", "sh", "-c", "read line; echo got $line; echo bad >&2; exit 3")
	v.cmd.Stdin = strings.NewReader("input\n")
	v.start().ends(3)
	if v.stdout.String() != "got input\n" || v.stderr.String() != "bad\n" {
		t.Errorf("stdout %q, stderr %q", v.stdout.String(), v.stderr.String())
	}
}

func TestTargetDiesMidTrace(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-o", "x.pb.gz")
	script(t, p, leave23)
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	p.Wait()
	v.ends(exitDone)
	want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
}

func TestWaitsForCUDA(t *testing.T) {
	p := workload(t, testcuda.WorkloadLate, testcuda.Options{})
	v := tracing(t, "-p", pid(p), "-o", "x.pb.gz")
	if !strings.Contains(v.stderr.String(), "uses no CUDA library yet: waiting") {
		t.Errorf("stderr %q", v.stderr.String())
	}
	script(t, p, "dlopen", "sleep 500", "init", leave23)
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
}

func TestSeveralTargetsAndAll(t *testing.T) {
	for _, target := range []string{"-p", "-a"} {
		t.Run(target, func(t *testing.T) {
			a, b := workload(t, testcuda.Workload, testcuda.Options{}, "init"), workload(t, testcuda.WorkloadStripped, testcuda.Options{}, "cudaMalloc")
			args := []string{"-a", "-o", "x.json"}
			if target == "-p" {
				args = []string{"-p", pid(a), "--pid", pid(b), "-p", pid(a), "-o", "x.json"} // one of them twice
			}
			v := tracing(t, args...)
			script(t, a, leave23)
			script(t, b, "repeat 5 cudaMalloc 100")
			v.signal(syscall.SIGINT)
			v.ends(exitDone)
			var s struct {
				Meta struct {
					Target string `json:"target"`
				} `json:"meta"`
				Processes []struct {
					PID   int   `json:"pid"`
					Inuse int64 `json:"inuse"`
				} `json:"processes"`
			}
			text := read(t, filepath.Join(v.cmd.Dir, "x.json"))
			if err := json.Unmarshal(text, &s); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(s.Meta.Target, "pid "); target == "-p" && n != 2 {
				t.Errorf("the target is %q", s.Meta.Target)
			}
			held := map[int]bool{}
			for _, p := range s.Processes {
				held[p.PID] = true
			}
			if !held[a.PID()] || !held[b.PID()] || target == "-p" && len(held) != 2 {
				t.Errorf("processes %+v, want %d and %d\n%.2000s", s.Processes, a.PID(), b.PID(), text)
			}
		})
	}
}

func TestDuration(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	begin := time.Now()
	v := tracing(t, "-p", pid(p), "-d", "3s", "-o", "x.pb.gz")
	script(t, p, leave23)
	v.ends(exitDone)
	if d := time.Since(begin); d < 3*time.Second {
		t.Errorf("it ended after %v", d)
	}
	want23(t, read(t, filepath.Join(v.cmd.Dir, "x.pb.gz")))
}

// Every format is what it says, from -o's extension and from --format.
func TestFormats(t *testing.T) {
	check := map[string]func(t *testing.T, text []byte){
		"pprof": want23,
		"folded": func(t *testing.T, text []byte) {
			var sum int
			for line := range strings.Lines(string(text)) {
				at := strings.LastIndexByte(line, ' ')
				if strings.HasSuffix(line[:at], ";[driver rounding]") {
					continue
				}
				n, err := strconv.Atoi(strings.TrimSpace(line[at+1:]))
				if err != nil || !strings.Contains(line[:at], ";cuMemAlloc_v2") {
					t.Errorf("line %q: %v", line, err)
				}
				sum += n
			}
			if sum != bytes23 {
				t.Errorf("%d bytes, want %d", sum, bytes23)
			}
		},
		"csv": func(t *testing.T, text []byte) {
			rows, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
			if err != nil || len(rows) != objects+1 {
				t.Errorf("%d rows, %v, want a header and %d", len(rows), err, objects)
			}
		},
		"json": func(t *testing.T, text []byte) {
			var v map[string]any
			if err := json.Unmarshal(text, &v); err != nil || len(v) < 3 {
				t.Errorf("%v: %.200s", err, text)
			}
		},
		"table": func(t *testing.T, text []byte) {
			for _, want := range []string{"workload", "invoke args.c:12", "92.0 KiB"} {
				if !strings.Contains(string(text), want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if strings.Contains(string(text), "\x1b") {
				t.Error("colours in a file")
			}
		},
	}
	check["pickle"] = func(t *testing.T, text []byte) {
		s, err := viewertest.ReadPickle(text)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(true); err != nil {
			t.Error(err)
		}
		held, entries := int64(0), 0
		for i := range s.Segments {
			held += s.Segments[i].Total
		}
		for _, of := range s.DeviceTraces {
			entries += len(of)
		}
		if held != bytes23 || len(s.Segments) != objects || entries != 2*objects { // each segment and its block come
			t.Errorf("%d bytes in %d segments, %d entries, want %d in %d", held, len(s.Segments), entries, bytes23, objects)
		}
	}
	for _, format := range ofMoments() {
		t.Run(format.Name, func(t *testing.T) {
			if check[format.Name] == nil {
				t.Fatal("a format without a test")
			}
			p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
			byName := tracing(t, "-p", pid(p), "-o", "x.data", "--format", format.Name)
			byExtension := tracing(t, "-p", pid(p), "-o", "x"+format.Extensions[0])
			script(t, p, leave23)
			for _, v := range []*invocation{byName, byExtension} {
				v.signal(syscall.SIGINT)
				v.ends(exitDone)
			}
			check[format.Name](t, read(t, filepath.Join(byName.cmd.Dir, "x.data")))
			check[format.Name](t, read(t, filepath.Join(byExtension.cmd.Dir, "x"+format.Extensions[0])))
		})
	}
}

func TestQuiet(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-q", "-o", "x.pb.gz", "-d", "100ms").ends(exitDone)
	if v.stderr.String() != "" || v.stdout.String() != "" {
		t.Errorf("stdout %q, stderr %q", v.stdout.String(), v.stderr.String())
	}
}

// --api both names the runtime call, and counts no byte twice.
func TestAPIs(t *testing.T) {
	for _, api := range []string{"driver", "runtime", "both"} {
		t.Run(api, func(t *testing.T) {
			p := workload(t, testcuda.Workload, testcuda.Options{}, "cudaMalloc")
			v := tracing(t, "-p", pid(p), "--api", api, "-o", "x.pb.gz")
			script(t, p, fmt.Sprintf("repeat %d cudaMalloc 4096", objects))
			v.signal(syscall.SIGINT)
			v.ends(exitDone)
			text := read(t, filepath.Join(v.cmd.Dir, "x.pb.gz"))
			want23(t, text)
			for _, s := range allocated(readPprof(t, text)) {
				if want := map[string]string{"driver": "cuMemAlloc_v2", "runtime": "cudaMalloc", "both": "cuMemAlloc_v2"}[api]; s.Label["api"][0] != want {
					t.Errorf("labels %v, want api %s", s.Label, want)
				}
			}
		})
	}
}

// report and diff read what a trace wrote.
func TestReportAndDiff(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "-o", "x.pb.gz")
	script(t, p, "via l cuMemAlloc_v2 1m")
	v.signal(syscall.SIGUSR1)
	first := filepath.Join(v.cmd.Dir, "x.000001.pb.gz")
	v.until("the first file is there", func() bool { return exists(t, first) })
	script(t, p, "via r cuMemAlloc_v2 2m")
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	last := filepath.Join(v.cmd.Dir, "x.pb.gz")
	for _, c := range []struct{ args, want string }{
		{"report " + last, "3.00 MiB"},
		{"diff " + first + " " + last, "2.00 MiB"},
	} {
		r := command(t, strings.Fields(c.args)...).start().ends(exitDone)
		if !strings.Contains(r.stdout.String(), c.want) || r.stderr.String() != "" {
			t.Errorf("%s: want %q in\n%s%s", c.args, c.want, r.stdout.String(), r.stderr.String())
		}
	}
	command(t, "report", "/no/such/file").start().ends(exitFailed).says("/no/such/file")
	command(t, "report", "/etc/passwd").start().ends(exitFailed).says("/etc/passwd")
}
