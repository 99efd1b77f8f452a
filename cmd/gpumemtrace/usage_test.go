package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args string
		says string
	}{
		{"", "nothing to trace"},
		{"-p 1 -a", "only one of"},
		{"-p 1 -- true", "only one of"},
		{"-a -- true", "only one of"},
		{"--no-such-flag", "--no-such-flag"},
		{"-p x", "\"x\""},
		{"-p 0", "0 is not a process id"},
		{"-p -3", "-3 is not a process id"},
		{"-p 1 --format xml", "unknown format \"xml\""},
		{"-p 1 -o x.unknown", "unknown extension \".unknown\" of x.unknown: use one of .pb.gz, .pprof, .prof, .pickle, .folded, .collapsed, .csv, .json, .txt, .html, or say --format"},
		{"-p 1 --record x.gmt -o y.gmt", "unknown extension \".gmt\""},
		{"-p 1 -o x.unknown --format jsn", "unknown format \"jsn\""},
		{"convert x.gmt -o x.jsn", "unknown extension \".jsn\""},
		{"convert x.gmt x.htm", "unknown extension \".htm\""},
		{"-p 1 --api cuda", "\"cuda\" for \"--api\" flag: use one of driver runtime both"},
		{"-p 1 --stacks deep", "\"deep\" for \"--stacks\" flag"},
		{"-p 1 --native some", "native"},
		{"-p 1 -d -5s", "negative"},
		{"-p 1 -d soon", "soon"},
		{"-p 1 --max-live 0", "--max-live"},
		{"-p 1 --free-stacks --record x.gmt", "--free-stacks needs --tensors"},
		{"-p 1 --free-stacks --tensors", "--record"},
		{"-p 1 --tensors-window 2s --tensors", "give only one of them"},
		{"-p 1 --tensors-window 2s --tensors-every 3s", "at least twice as long"},
		{"-p 1 --tensors-window 1ms", "at least 100ms"},
		{"-p 1 --tensors-every 3s", "tensors-every needs tensors-window"},
		{"-p 1 --tensors-window 2s --free-stacks --record x.gmt", "--free-stacks needs --tensors"},
		{"-p 1 --holders 1ms", "at least 1s"},
		{"-p 1 --keys some", "use names, all, none"},
		{"-p 1 --tensors --tensor-sample 1MiB", "unknown flag: --tensor-sample"},
		{"-p 1 -o - --interval 1s", "--interval"},
		{"-p 1 stray", "stray"},
		{"stray", "stray"},
		{"reprot x", "\"reprot\" is not a command: did you mean report?"},
		{"reprot x --by line", "did you mean report?"},
		{"usage_test.go", "a command to run goes after --"},
		{"/etc/passwd", "to read this file, use gpumemtrace report /etc/passwd"},
		{"python train.py --epochs 3", "\"python\": a command to run goes after --"},
		{"-p 1 --tensor", "unknown flag: --tensor: did you mean --tensors or --tensors-every or --tensors-window?"},
		{"-p 1 --verbos", "did you mean --verbose?"},
		{"-p 1 --nothing-like-it", "unknown flag: --nothing-like-it"},
		{"report x --buy line", "unknown flag: --buy: did you mean --by?"},
		{"-p seven", "invalid argument \"seven\" for --pid: give a whole number"},
		{"-p 1 -d 5", "for --duration: give a duration such as 90s"},
		{"-p 1 --verify-stacks -1", "for --verify-stacks: give a whole number, not below 0"},
		{"report x -n many", "for --top: give a whole number"},
		{"fit 8=a 16=b --to big", "for --to: give a number"},
		{"-p 1 --force=maybe", "for --force: give true or false"},
		{"report", "give one profile or recording (gpumemtrace diff compares two)"},
		{"report a b", "not 2"},
		{"report x --tensor", "unknown flag: --tensor: gpumemtrace has --tensors and --tensors-every and --tensors-window"},
		{"report x --peak", "give --at peak"},
		{"report x --format json", "give --csv or --json"},
		{"diff x y --format json", "give --csv or --json"},
		{"convert x --json", "gpumemtrace report, diff, whatif, fit and top have --json"},
		{"report x --csv --json --by line", "not both"},
		{"report x --json", "--json writes the rows of --by: say by what"},
		{"diff x y --csv", "--csv writes the rows of --by: say by what"},
		{"report x --by categories", "did you mean category?"},
		{"help reprot", "did you mean report?"},
		{"report x --by stack", "cannot group by \"stack\""},
		{"report x --by line,shape", "give --by shape alone"},
		{"report x --by shape --csv", "without --csv and --json"},
		{"report x --by layer", "give --by module_path"},
		{"diff", "give two profiles"},
	} {
		t.Run(c.args, func(t *testing.T) {
			v := command(t, strings.Fields(c.args)...).start().ends(exitUsage)
			v.says(c.says)
			if v.stdout.String() != "" || !strings.Contains(v.stderr.String(), "Try '"+helped(c.args)+" --help'") {
				t.Errorf("stdout %q, stderr %q", v.stdout.String(), v.stderr.String())
			}
		})
	}
}

// helped is the command whose help a wrong command line is referred to.
func helped(args string) string {
	if name, _, _ := strings.Cut(args, " "); name == "report" || name == "diff" || name == "convert" || name == "fit" {
		return "gpumemtrace " + name
	}
	return "gpumemtrace"
}

func TestHelpAndVersion(t *testing.T) {
	for args, want := range map[string]string{
		"--help":            "Examples:",
		"-h":                "--require-cuda",
		"--version":         "gpumemtrace version",
		"report -h":         "--by",
		"diff --help":       "BEFORE [AFTER]",
		"fit --help":        "Write the number of a recording before the file",
		"completion --help": "\n  zsh ",
	} {
		v := command(t, strings.Fields(args)...).start().ends(exitDone)
		if !strings.Contains(v.stdout.String(), want) || v.stderr.String() != "" {
			t.Errorf("%s: stdout %q, stderr %q, want %q", args, v.stdout.String(), v.stderr.String(), want)
		}
	}
}

// fakeCUDA returns a late workload that has loaded a library of CUDA's name and
// nothing more.
func fakeCUDA(t *testing.T) *testcuda.Process {
	t.Helper()
	lib := filepath.Join(t.TempDir(), "libcuda.so.1")
	gcc := exec.Command("gcc", "-shared", "-x", "c", "-o", lib, "-")
	gcc.Stdin = strings.NewReader("int nothing(void) { return 0; }")
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return workload(t, testcuda.WorkloadLate, testcuda.Options{}, "dlopen "+lib)
}

// program32 starts a 32-bit program that waits, and returns its PID: 0 if the kernel does
// not run such programs (ia32_emulation=off).
func program32(t *testing.T) int {
	t.Helper()
	path := filepath.Join(t.TempDir(), "program32")
	gcc := exec.Command("gcc", "-m32", "-nostdlib", "-static", "-ffreestanding", "-fno-pie", "-no-pie",
		"-fno-stack-protector", "-x", "c", "-o", path, "-")
	gcc.Stdin = strings.NewReader(`void _start(void) { for (;;) __asm__ volatile("int $0x80" :: "a"(29)); }`) // pause(2)
	if out, err := gcc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command(path)
	if err := cmd.Start(); errors.Is(err, syscall.ENOEXEC) {
		return 0
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestBadTargets(t *testing.T) {
	needTracing(t)
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	zombie := exec.Command("true")
	if err := zombie.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { zombie.Wait() })
	late := workload(t, testcuda.WorkloadLate, testcuda.Options{})
	threads := workload(t, testcuda.Workload, testcuda.Options{})
	if err := threads.Send("threads 1 sleep 60000"); err != nil {
		t.Fatal(err)
	}
	var tid string
	for tid == "" {
		tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", threads.PID()))
		if err != nil {
			t.Fatal(err)
		}
		if len(tasks) == 2 {
			tid = tasks[1].Name()
		}
	}
	for _, c := range []struct {
		name string
		args []string
		says []string
	}{
		{"no such process", []string{"-p", fmt.Sprint(ended.Process.Pid)}, []string{"there is no such process"}},
		{"beyond every PID", []string{"-p", "2147483647"}, []string{"there is no such process"}},
		{"exited", []string{"-p", fmt.Sprint(zombie.Process.Pid)}, []string{"it has exited"}},
		{"thread", []string{"-p", tid}, []string{tid, "that is a thread"}},
		{"32-bit", []string{"-p", fmt.Sprint(program32(t))}, []string{"32-bit"}},
		{"no CUDA", []string{"-p", pid(late), "--require-cuda"}, []string{"uses no CUDA library", "--require-cuda"}},
		{"useless library", []string{"-p", pid(fakeCUDA(t))}, []string{"libcuda.so.1", "none of the functions"}},
		{"one of two", []string{"-p", pid(threads), "-p", "2147483647"}, []string{"2147483647"}},
		{"no such command", []string{"--", "/no/such/command"}, []string{"/no/such/command", "no such file"}},
		{"no command in PATH", []string{"--", "no-such-command"}, []string{"no-such-command", "not found"}},
		{"not executable", []string{"--", "/etc/passwd"}, []string{"/etc/passwd", "permission denied"}},
		{"a directory", []string{"--", "/etc"}, []string{"/etc"}},
	} {
		if slices.Contains(c.args, "0") {
			continue // the kernel runs no such program, so nobody can trace one
		}
		t.Run(c.name, func(t *testing.T) {
			v := command(t, append([]string{"--stacks", "fp"}, c.args...)...).start().ends(exitFailed)
			v.says(c.says...)
			if files, _ := os.ReadDir(v.cmd.Dir); len(files) != 0 {
				t.Errorf("it left %v", files)
			}
		})
	}
	t.Run("itself", func(t *testing.T) {
		v := command(t)
		v.cmd = exec.Command("sh", "-c", `exec "$0" --stacks fp -p $$`, binary)
		v.cmd.Dir, v.cmd.Stderr = t.TempDir(), &v.stderr
		v.start().ends(exitFailed).says("itself")
	})
}

// A user who may not trace learns which capabilities are missing.
func TestNotRoot(t *testing.T) {
	needTracing(t)
	p := workload(t, testcuda.Workload, testcuda.Options{}, "init")
	const nobody = 65534
	for _, args := range [][]string{{"-p", pid(p)}, {"-a"}, {"--", "true"}} {
		v := command(t, append([]string{"-o", filepath.Join(os.TempDir(), "gpumemtrace-nobody.pb.gz")}, args...)...)
		v.cmd.Dir = "/"
		v.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		v.start().ends(exitFailed).says("root", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE")
	}
}
