package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// reported returns how long after its beginning a recorded trace made each of
// its reports.
func reported(t *testing.T, path string) (after []time.Duration) {
	t.Helper()
	r, err := record.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var trace *record.Trace
	var now uint64
	for {
		rec, err := r.Next()
		switch rec := rec.(type) {
		case *record.Trace:
			trace = rec
		case *record.Moment:
			now = max(now, rec.Time)
		case *record.Reported:
			after = append(after, trace.Boot.Add(time.Duration(now)).Sub(trace.Start))
		}
		if errors.Is(err, io.EOF) {
			return after
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// comparable returns what two files of a format must have in common. Live rows
// come in any order; and mappings and locations of two processes that are alike
// are one in a recording, so that numbers stand for what they number. Only a recording knows which
// moment is shown.
func comparable(t *testing.T, format string, text []byte) string {
	t.Helper()
	switch format {
	case "pprof":
		p := readPprof(t, text)
		var b strings.Builder
		p.Comments = slices.DeleteFunc(p.Comments, func(c string) bool { return strings.HasPrefix(c, "moment: ") })
		fmt.Fprintln(&b, strings.Join(p.Comments, "\n"), p.TimeNanos, p.DurationNanos, p.DefaultSampleType)
		for _, s := range p.Sample {
			fmt.Fprintln(&b, s.Value, s.Label, s.NumLabel)
			for _, l := range s.Location {
				if m := l.Mapping; m != nil {
					fmt.Fprint(&b, m.File, m.BuildID, m.Start, m.Limit, m.Offset, m.HasFunctions, m.HasLineNumbers)
				}
				fmt.Fprintf(&b, "  %#x", l.Address)
				for _, line := range l.Line {
					fmt.Fprintf(&b, " %+v:%d", *line.Function, line.Line)
				}
				fmt.Fprintln(&b)
			}
		}
		return regexp.MustCompile(`\bID:[0-9]+`).ReplaceAllString(b.String(), "")
	case "json":
		var v map[string]any
		if err := json.Unmarshal(text, &v); err != nil {
			t.Fatal(err)
		}
		list := func(name string) []any {
			l, _ := v[name].([]any)
			return l
		}
		mappings, locations := list("mappings"), list("locations")
		for _, l := range locations {
			l := l.(map[string]any)
			if i, ok := l["mapping"].(float64); ok {
				l["mapping"] = mappings[int(i)]
			}
		}
		for _, s := range list("samples") {
			stack := s.(map[string]any)["stack"].([]any)
			for i := range stack {
				stack[i] = locations[int(stack[i].(float64))]
			}
		}
		delete(v["meta"].(map[string]any), "moment")
		delete(v, "mappings")
		delete(v, "locations")
		slices.SortFunc(list("live"), func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		out, err := json.MarshalIndent(v, "", " ")
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	case "table":
		title, rest, _ := strings.Cut(string(text), "\n")
		_, rest, _ = strings.Cut(rest, "\n")
		return title + "\n" + momentInHeading.ReplaceAllString(rest, "$2")
	case "csv":
		lines := strings.Split(string(text), "\n")
		slices.Sort(lines[1:])
		return strings.Join(lines, "\n")
	}
	return string(text)
}

// momentInHeading is what headings of tables say of a moment that was asked for.
var momentInHeading = regexp.MustCompile(` (at the end|at the peak|after [0-9.]+[a-zµ]+)([,:])`)

// same compares what a trace wrote with what was made of its recording.
func same(t *testing.T, what, format string, want, got []byte) {
	t.Helper()
	a, b := strings.Split(comparable(t, format, want), "\n"), strings.Split(comparable(t, format, got), "\n")
	for i := range max(len(a), len(b)) {
		var x, y string
		if i < len(a) {
			x = a[i]
		}
		if i < len(b) {
			y = b[i]
		}
		if x != y {
			t.Errorf("%s, %s, line %d: the trace wrote\n%s\nand its recording says\n%s", what, format, i+1, x, y)
			return
		}
	}
}

// converted runs convert and returns the file that it wrote.
func converted(t *testing.T, recording, name string, args ...string) []byte {
	t.Helper()
	v := command(t, append([]string{"convert", recording, "-o", name}, args...)...).start().ends(exitDone)
	return read(t, filepath.Join(v.cmd.Dir, name))
}

// What convert makes of a recording, at the moment of each report, is what the
// trace wrote then: in every format, of chosen processes or of all, with memory that
// is freed, with processes that replace their image, fork and end, and with calls that fail.
func TestConvertIsWhatTheTraceWrote(t *testing.T) {
	for i, format := range ofMoments() {
		target := []string{"-p", "-a"}[i%2]
		t.Run(format.Name+target, func(t *testing.T) {
			ext := format.Extensions[0]
			a, b := workload(t, testcuda.Workload, testcuda.Options{}, "init"), workload(t, testcuda.Workload, testcuda.Options{}, "init")
			native := []string{"all", "python", "none"}[i%3]
			args := []string{"-a"}
			if target == "-p" {
				args = []string{"-p", pid(a), "-p", pid(b)}
			}
			var failures []string // the flags to report them; those who do not ask for them record them as well
			if i > 0 {
				failures = []string{"--oom-dir", "oom"}
			}
			v := tracing(t, append(append(args, failures...), "--record", "x.gmt", "-o", "x"+ext, "--native", native)...)
			file := func(n int) string { return filepath.Join(v.cmd.Dir, fmt.Sprintf("x.%06d%s", n, ext)) }
			report := func(n int) {
				t.Helper()
				v.signal(syscall.SIGUSR1)
				v.until("a numbered file is there", func() bool { return exists(t, file(n)) })
			}
			script(t, a, "via lr repeat 20 cuMemAlloc_v2 4096+i", "via r cuMemAllocHost_v2 3000")
			script(t, b, "cuMemAlloc_v2 1m", "repeat 5 cuMemAllocManaged 10")
			report(1)
			script(t, a, "free cuMemAllocHost_v2", "fail cuMemAlloc_v2 1 2", "via rl expect 2 cuMemAlloc_v2 12345")
			if failures != nil {
				v.until("the failure is reported", func() bool { return len(oomFiles(t, filepath.Join(v.cmd.Dir, "oom"))) == 2 })
			}
			script(t, a, "fork via l cuMemAlloc_v2 777")
			if err := b.Send("exec " + testcuda.Get(t).Path(testcuda.Workload)); err != nil {
				t.Fatal(err)
			}
			script(t, b, "init", "via l cuMemAlloc_v2 2m")
			report(2)
			script(t, b, "free all", "cuMemAlloc_v2 5")
			if err := b.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			b.Wait()
			report(3)
			v.signal(syscall.SIGINT)
			v.ends(exitDone)

			recording := filepath.Join(v.cmd.Dir, "x.gmt")
			moments := reported(t, recording)
			if len(moments) != 4 {
				t.Fatalf("reports at %v, want 4", moments)
			}
			for n, at := range moments {
				live, when := file(n+1), fmt.Sprintf("%dns", at.Nanoseconds())
				if n == len(moments)-1 {
					live = filepath.Join(v.cmd.Dir, "x"+ext)
					same(t, "at the end", format.Name, read(t, live), converted(t, recording, "x"+ext, "--native", native, "--at", "end"))
				}
				same(t, fmt.Sprint("report ", n+1), format.Name, read(t, live), converted(t, recording, "x"+ext, "--native", native, "--at", when))
			}
			if failures == nil {
				return
			}
			again := t.TempDir()
			converted(t, recording, "x"+ext, "--native", native, "--oom-dir", again)
			wrote := oomFiles(t, filepath.Join(v.cmd.Dir, "oom"))
			if got := oomFiles(t, again); !slices.Equal(wrote, got) {
				t.Fatalf("%q of the trace, %q of its recording", wrote, got)
			}
			for _, name := range wrote {
				format := "text"
				if strings.HasSuffix(name, ".pb.gz") {
					format = "pprof"
				}
				same(t, name, format, read(t, filepath.Join(v.cmd.Dir, "oom", name)), read(t, filepath.Join(again, name)))
			}
		})
	}
}

func oomFiles(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(names(t, dir), func(n string) bool { return strings.HasPrefix(n, ".") })
}

// The recording of a tracer that was killed shows what was live then, and says
// that it was not closed.
func TestRecordingOfAKilledTracer(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "--record", "x.gmt", "-o", "x.pb.gz")
	script(t, p, leave23, "sleep 1500") // more than what is handed over late
	v.signal(syscall.SIGKILL)
	v.ends(128 + int(syscall.SIGKILL))
	recording := filepath.Join(v.cmd.Dir, "x.gmt")
	text := converted(t, recording, "x.pb.gz", "--at", "end")
	want23(t, text)
	if comments := strings.Join(readPprof(t, text).Comments, "\n"); !strings.Contains(comments, "not closed") || !strings.Contains(comments, "recording_cut_short") {
		t.Errorf("comments\n%s", comments)
	}
	r := command(t, "report", recording).start().ends(exitDone)
	if !strings.Contains(r.stdout.String(), "92.0 KiB") {
		t.Errorf("report\n%s", r.stdout.String())
	}
}

// Processes of one job are called by their ranks, and no other variable of their environment is recorded.
func TestRanks(t *testing.T) {
	args := []string{"--record", "x.gmt", "-o", "x.json"}
	var ranks []*testcuda.Process
	for rank := range 2 {
		p := workload(t, testcuda.Workload, testcuda.Options{Env: []string{fmt.Sprint("RANK=", rank), "LOCAL_RANK=0", "WORLD_SIZE=2", "API_KEY=hunter2"}}, "init")
		ranks, args = append(ranks, p), append(args, "-p", pid(p))
	}
	v := tracing(t, args...)
	for i, p := range ranks {
		script(t, p, fmt.Sprintf("via l cuMemAlloc_v2 %d", (1+i)<<20))
	}
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	recording := filepath.Join(v.cmd.Dir, "x.gmt")
	for args, want := range map[string]string{
		"report " + recording + " --by process": "rank 1 of 2",
		"diff --ranks " + recording:             fmt.Sprintf("RANK 0 (%d)  RANK 1 (%d)", ranks[0].PID(), ranks[1].PID()),
		"top --once " + recording:               "rank 0 of 2",
	} {
		if out := command(t, strings.Fields(args)...).start().ends(exitDone).stdout.String(); !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", args, want, out)
		}
	}
	text := read(t, filepath.Join(v.cmd.Dir, "x.json"))
	if want := fmt.Sprintf(`"parent_pid":%d`, os.Getpid()); !bytes.Contains(text, []byte(`"rank":"1","local_rank":"0","world_size":"2"`)) || !bytes.Contains(text, []byte(want)) {
		t.Errorf("no rank or no %s in\n%s", want, text)
	}
	plain := command(t, "convert", recording, "-o", "-", "--format", "json").start().ends(exitDone).stdout.String()
	if strings.Contains(string(text)+plain, "hunter2") {
		t.Error("a secret was recorded")
	}
}

// A recording that dropped its beginning shows what is live as the trace does.
func TestRecordingThatWraps(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "--record", "x.gmt", "--record-max", "16MiB", "-o", "x.folded")
	script(t, p, "via lr "+leave23)
	recording := filepath.Join(v.cmd.Dir, "x.gmt")
	// Its last block may not fit, and then the first ones make room.
	for i, more := 0, 10; more > 0; i++ {
		// Addresses and sizes without a pattern take most room.
		script(t, p, fmt.Sprintf("via rl repeat 20000 cuMemAlloc_v2 %d+i", 1000+977*i), "repeat 20000 cuMemFree_v2")
		if info, err := os.Stat(recording); err != nil || info.Size() > 15<<20 {
			more--
		}
	}
	script(t, p, "via l cuMemAlloc_v2 5000")
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	if info, err := os.Stat(recording); err != nil || info.Size() > 16<<20 || info.Size() < 12<<20 {
		t.Fatalf("%d bytes, %v", info.Size(), err)
	}
	want, got := read(t, filepath.Join(v.cmd.Dir, "x.folded")), converted(t, recording, "x.folded", "--at", "end")
	if sorted(want) != sorted(got) {
		t.Errorf("the trace wrote\n%s\nand its recording says\n%s", want, got)
	}
	begin := command(t, "convert", recording, "--at", "1ms", "-o", "x.folded").start().ends(exitFailed)
	begin.says("does not have that moment", "it begins at")
}

func sorted(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// --leaks of a recording finds what the trace found.
func TestLeaksOfARecording(t *testing.T) {
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	args := []string{"--leaks", "--leak-interval", "300ms"}
	v := tracing(t, append(args, "-p", pid(p), "--record", "x.gmt", "-o", "x.pb.gz")...)
	for range 25 {
		script(t, p, "via l cuMemAlloc_v2 4096", "sleep 100")
	}
	v.signal(syscall.SIGINT)
	v.ends(exitDone)
	c := command(t, append([]string{"report", filepath.Join(v.cmd.Dir, "x.gmt")}, args...)...).start().ends(exitDone)
	live, again := v.stdout.String(), c.stdout.String()
	if !strings.Contains(live, "via_left") || !strings.Contains(again, "via_left") {
		t.Errorf("the trace printed\n%s\nand its recording\n%s", live, again)
	}
}

// What is wrong with a recording's place is told before the command runs, and
// what is there stays as it is.
func TestRecordingsPlace(t *testing.T) {
	needTracing(t)
	dir := t.TempDir()
	existing := filepath.Join(dir, "existing.gmt")
	if err := os.WriteFile(existing, []byte("before"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args string
		code int
		says []string
	}{
		{"--record " + existing, exitFailed, []string{existing, "--force"}},
		{"--force --record " + dir, exitFailed, []string{dir}},
		{"--record " + filepath.Join(dir, "no/such/x.gmt"), exitFailed, []string{"no such file or directory"}},
		{"--record x.gmt --record-max 1MiB", exitUsage, []string{"--record-max", "16MiB"}},
		{"--record-max 1GiB", exitUsage, []string{"--record"}},
		{"--record x.gmt -o ./x.gmt", exitUsage, []string{"-o", "--record"}},
		{"--record -", exitUsage, []string{"--record"}},
	} {
		t.Run(c.args, func(t *testing.T) {
			ran := filepath.Join(t.TempDir(), "ran")
			v := command(t, append(append([]string{"--stacks", "fp"}, strings.Fields(c.args)...), "--", "touch", ran)...).start().ends(c.code)
			v.says(c.says...)
			if exists(t, ran) {
				t.Error("the command ran")
			}
			if left := names(t, v.cmd.Dir); len(left) != 0 {
				t.Errorf("it left %q", left)
			}
		})
	}
	if string(read(t, existing)) != "before" {
		t.Error("the existing file changed")
	}
	late := workload(t, testcuda.WorkloadLate, testcuda.Options{})
	for _, target := range []string{"2147483647", pid(late)} {
		v := command(t, "--stacks", "fp", "--record", "x.gmt", "--require-cuda", "-p", target).start().ends(exitFailed)
		if left := names(t, v.cmd.Dir); len(left) != 0 {
			t.Errorf("a trace that did not begin left %q", left)
		}
	}
}

// What cannot be converted is an error, or a usage error, in one sentence.
func TestWhatCannotBeConverted(t *testing.T) {
	needTracing(t)
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	v := tracing(t, "-p", pid(p), "--record", "x.gmt", "-o", "x.pb.gz", "-d", "300ms").ends(exitDone)
	recording, profile := filepath.Join(v.cmd.Dir, "x.gmt"), filepath.Join(v.cmd.Dir, "x.pb.gz")
	for _, c := range []struct {
		args string
		code int
		says string
	}{
		{"convert", exitUsage, "one recording"},
		{"convert " + recording + " --at soon", exitUsage, "--at"},
		{"report " + recording + " --leaks --leak-interval 1ms", exitUsage, "--leak-interval"},
		{"report " + recording + " --leaks --oom", exitUsage, "give only one of --steps, --windows, --segments, --oom, --leaks and --by"},
		{"convert " + recording + " --at 1h", exitFailed, "it ends at"},
		{"convert " + profile + " x.json", exitFailed, "not a recording but compressed with gzip, as profiles are: give a file that --record wrote"},
		{"convert /no/such/file", exitFailed, "/no/such/file"},
		{"convert " + recording + " " + recording + " --force", exitUsage, "is the recording itself"},
		{"convert " + v.cmd.Dir, exitFailed, "not a regular file"},
		{"report " + profile + " --at 1s", exitUsage, "one moment only"},
		{"report /proc/self/status", exitFailed, "not a profile that gpumemtrace wrote but text; give what -o or --record of a trace wrote"},
		{"report " + recording + " --at 1h", exitFailed, "it ends at"},
		{"diff " + recording + " " + profile + " --after 1s", exitUsage, "one moment only"},
		{"diff " + recording + " " + recording + " --before 0s --after 1h", exitFailed, "it ends at"},
	} {
		t.Run(c.args, func(t *testing.T) {
			v := command(t, strings.Fields(c.args)...).start().ends(c.code)
			v.says(c.says)
			if left := names(t, v.cmd.Dir); len(left) != 0 || v.stdout.String() != "" {
				t.Errorf("it left %q and printed %q", left, v.stdout.String())
			}
		})
	}
	for _, args := range []string{"report " + recording, "report " + recording + " --at 0s", "diff " + recording + " " + profile, "diff " + recording + " " + recording + " --before 100ms"} {
		if r := command(t, strings.Fields(args)...).start().ends(exitDone); r.stdout.String() == "" || bytes.Contains([]byte(r.stdout.String()), []byte("0001-01-01")) {
			t.Errorf("%s: %s", args, r.stdout.String())
		}
	}
}
