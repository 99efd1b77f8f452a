package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// A GPU that shares the machine's memory: NVML answers NOT_SUPPORTED (3) when it is asked for its memory
// and, on some machines, for its processes. Every output has the sum of what the kernel driver handed out,
// and one line for each thing that NVML does not say.
func TestMemoryNotSupported(t *testing.T) {
	needTracing(t)
	kit := testcuda.Get(t)
	const memory, processes = "*m = (memory){1ull << 36, (1ull << 36) - used, used}; return 0;", "if (*n < 1) { *n = 1; return 7; }"
	for _, c := range []struct {
		name        string
		unsupported []string
		notes       []string
	}{
		{"memory", []string{memory}, []string{"the driver does not say how much memory there is, or is in use, on GPU 0"}},
		{"memory and processes", []string{memory, processes}, []string{
			"the driver does not say how much memory there is, or is in use, on GPU 0",
			"the driver does not say which processes use GPU 0: a total there is the sum of what was seen"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			text := usesNVML
			for _, answer := range c.unsupported {
				if !strings.Contains(text, answer) {
					t.Fatalf("NVML's stand-in has no %q", answer)
				}
				text = strings.Replace(text, answer, "return 3;", 1)
			}
			source, run := filepath.Join(dir, "nvml.c"), filepath.Join(dir, "run.gmt")
			if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			nvml := filepath.Dir(compile(t, "libnvidia-ml.so.1", source))
			v := command(t, "--stacks", "fp", "-q", "-o", filepath.Join(dir, "x.json"), "--record", run, "--", kit.Path(testcuda.WorkloadLate), "init;cuMemAlloc_v2 64m")
			v.cmd.Env = append(os.Environ(), kit.Env(testcuda.LibsDefault)[0]+":"+nvml, "NVML_USED="+filepath.Join(dir, "none"))
			v.start().ends(exitDone)
			// 518 MiB of a context and 64 MiB.
			for args, total := range map[string]string{
				"report":                     "582 MiB",
				"report --by owner":          ": 582 MiB",
				"top --once --at end":        "holds 582 MiB",
				"top --once --at end --json": `"held_bytes":610271232,"known":true`,
				"convert - --format table":   ": 582 MiB",
				"convert - --format json":    `"total_bytes":610271232,"known":true`,
			} {
				words := strings.Fields(args)
				words = append([]string{words[0], run}, words[1:]...)
				out := command(t, words...).start().ends(exitDone).stdout.String()
				if !strings.Contains(out, total) {
					t.Errorf("%s: no %q in\n%s", args, total, out)
				}
				for _, note := range c.notes {
					if n := strings.Count(strings.Join(strings.Fields(out), " "), note); n != 1 {
						t.Errorf("%s: %d times %q in\n%s", args, n, note, out)
					}
				}
			}
		})
	}
}
