package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// What is printed after a trace needs nothing but this program; what needs Go comes second.
func TestNextCommand(t *testing.T) {
	pprof := formats()[0]
	next := nextCommand(&output{path: "x.pb.gz", format: pprof})
	if !strings.HasPrefix(next, "gpumemtrace report x.pb.gz\n") || !strings.HasSuffix(next, "\n  go tool pprof -http=: x.pb.gz") {
		t.Errorf("%q", next)
	}
	for _, text := range append(pages(t), documented(t)...) {
		report, other := strings.Index(text, "gpumemtrace report "), strings.Index(text, "go tool pprof")
		if other >= 0 && (report < 0 || report > other) {
			t.Errorf("go tool pprof comes first in\n%s", text)
		}
	}
}

// pages are the examples of every command.
func pages(t *testing.T) (out []string) {
	t.Helper()
	root := newRoot()
	for _, c := range append(root.Commands(), root) {
		out = append(out, c.Example)
	}
	return out
}

// documented are the sections of the documents.
func documented(t *testing.T) (out []string) {
	t.Helper()
	for _, text := range documents(t) {
		out = append(out, strings.Split(text, "\n## ")...)
	}
	return out
}

// The end of a trace names the report of its recording, and the page.
func TestRecordedNext(t *testing.T) {
	recording, err := filepath.Abs("../../test/recordings/ipc.gmt")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "run.gmt")
	if err := os.Symlink(recording, path); err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer func(f *os.File) { os.Stderr = f }(os.Stderr)
	os.Stderr = w
	logger{}.recorded(path)
	w.Close()
	said := make([]byte, 4096)
	n, err := r.Read(said)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"\n  gpumemtrace report " + path + "\n", "\n  gpumemtrace convert " + path + " " + strings.TrimSuffix(path, "gmt") + "html\n"} {
		if !strings.Contains(string(said[:n]), want) {
			t.Errorf("no %q in %s", want, said[:n])
		}
	}
}

// Without a GPU, the demo ends with the report and the page of a real recording.
func TestDemo(t *testing.T) {
	needTracing(t)
	demo, err := os.ReadFile("../../scripts/demo")
	if err != nil {
		t.Fatal(err)
	}
	progress, err := os.ReadFile("../../scripts/progress")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(demo), "go tool pprof") {
		t.Error("the demo needs Go's pprof")
	}
	root := t.TempDir()
	recordings, err := filepath.Abs("../../test")
	if err != nil {
		t.Fatal(err)
	}
	// A stand-in for the stand-in: what it traces is not in question here.
	for name, text := range map[string]string{"scripts/demo": string(demo), "scripts/progress": string(progress), "path/go": "#!/bin/sh\necho " + root, "train": "#!/bin/sh\n", "path/nvidia-smi": "#!/bin/sh\nexit 1\n"} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"test": recordings, "bin": filepath.Dir(binary)} {
		if err := os.Symlink(to, filepath.Join(root, name)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(root, "scripts/demo"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(root, "path")+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, last, found := strings.Cut(string(out), "a recording of a real GPU")
	if !found || !strings.Contains(last, "python3 (429)") || !strings.Contains(last, "demo: open bin/demo.html in a browser: the same recording over time.\n") || !strings.HasSuffix(last, "bin/gpumemtrace top -p $!\n") {
		t.Errorf("it ends with %s", last)
	}
	if page := read(t, filepath.Join(root, "bin/demo.html")); !strings.Contains(string(page), "<html") {
		t.Errorf("the page is %d bytes", len(page))
	}
}

// What a page names as the next command runs, on the same files.
func TestNextCommandsRun(t *testing.T) {
	recordings, err := filepath.Abs("../../test/recordings")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, of := range map[string]string{"failed": "allocator/fragmented", "run8": "allocator/peft_8", "run16": "allocator/peft_16", "ranks": "ipc"} {
		if err := os.Symlink(filepath.Join(recordings, of+".gmt"), filepath.Join(dir, name+".gmt")); err != nil {
			t.Fatal(err)
		}
	}
	done := map[string]bool{}
	run := func(args string) (next []string) {
		done[args] = true
		v := command(t, strings.Fields(args)...)
		v.cmd.Dir = dir
		v.start().ends(0)
		_, text, _ := strings.Cut(v.stdout.String(), "\nNext\n")
		for line := range strings.Lines(text) {
			if next = append(next, ""); strings.HasPrefix(line, "    gpumemtrace ") {
				next[len(next)-1] = strings.TrimSpace(strings.TrimPrefix(line, "    gpumemtrace "))
			}
		}
		return slices.DeleteFunc(next, func(args string) bool { return args == "" })
	}
	for _, args := range []string{
		"report failed.gmt", "report failed.gmt --oom", "report failed.gmt --by category", "report failed.gmt --by size", "report failed.gmt --by line --at end", "report failed.gmt --by operator --turnover",
		"report failed.gmt --segments", "report run8.gmt --oom", "report run8.gmt --steps", "report run8.gmt --leaks", "diff run8.gmt run16.gmt", "diff run8.gmt --before 1s --after peak", "diff --ranks ranks.gmt --at end",
		"whatif failed.gmt", "fit run8.gmt run16.gmt --to 32",
	} {
		next := run(args)
		if len(next) == 0 {
			t.Errorf("%s names no next command", args)
		}
		for _, args := range next {
			if !done[args] {
				run(args + forced(args))
			}
		}
	}
}

// forced replaces a page that an earlier command wrote.
func forced(args string) string {
	if strings.HasPrefix(args, "convert ") || strings.Contains(args, " -o ") {
		return " --force"
	}
	return ""
}
