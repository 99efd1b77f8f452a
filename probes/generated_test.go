package probes

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// lacking returns the rows of libcuda that the stand-in does not export, or one
// that it does, and PyTorch's but for tensors (TestTensors). They move no memory: those
// that do need a stand-in that says how much.
func lacking(t *testing.T) (entries []Entry) {
	t.Helper()
	kit := testcuda.Get(t)
	offsets, err := offsetsOf(kit.LibCUDA, known)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range Entries[1:] {
		if _, ok := offsets[e.Symbol]; ok && e.Symbol != "cuCtxSetLimit" || e.Level == Runtime || e.class == classTensor || !ofLibrary(e) {
			continue
		}
		if e.class != classCause && e.Op != event.OpOutOfMemory {
			t.Errorf("%s moves memory, and the stand-in does not export it", e.Symbol)
		}
		entries = append(entries, e)
	}
	return entries
}

// generate builds libraries of functions that do nothing but return, and a
// program that calls them: "SYMBOL TIMES RESULT".
func generate(t *testing.T, entries []Entry) (path string) {
	t.Helper()
	dir := t.TempDir()
	libs := map[Level]string{Driver: "libcuda.so.1", Torch: "libc10.so"}
	source := map[Level]*strings.Builder{Driver: {}, Torch: {}}
	var declare, call strings.Builder
	for _, e := range entries {
		fmt.Fprintf(source[e.Level], "int %s(long a, long b, long c, long d) { __asm__ volatile(\"\"); extern int result; return result; }\n", e.Symbol)
		fmt.Fprintf(&declare, "int %s(long, long, long, long);\n", e.Symbol)
		fmt.Fprintf(&call, "\t\t\tif (strcmp(what, \"%s\") == 0) %[1]s(1000, 2000, 3000, 0x0101);\n", e.Symbol)
	}
	program := `#include <stdio.h>
#include <string.h>
int result;
` + declare.String() + `
int main(void) {
	char what[128];
	int n;
	puts("up");
	fflush(stdout);
	while (scanf("%127s %d %d", what, &n, &result) == 3) {
		for (int i = 0; i < n; i++) {
` + call.String() + `		}
		puts(what);
		fflush(stdout);
	}
}
`
	gcc := func(out, text string, args ...string) string {
		out = filepath.Join(dir, out)
		c := out + ".c"
		if err := os.WriteFile(c, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append([]string{"-O1", "-fno-omit-frame-pointer", "-o", out, c}, args...)
		if text, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %s: %v\n%s", args, err, text)
		}
		return out
	}
	var link []string
	for level, name := range libs {
		link = append(link, gcc(name, source[level].String(), "-shared", "-fPIC", "-Wl,-soname,"+name))
	}
	return gcc("generated", program, append(link, "-rdynamic", "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")...)
}

// Rows beyond the stand-in: each call is an event with its result and a stack, or
// none.
func TestEveryOtherRow(t *testing.T) {
	entries := lacking(t)
	p := spawn(t, exec.Command(generate(t, entries)), "up")
	tr := openTrace(t, Options{})
	if libs := tr.target(p.pid()); len(libs) != 1 {
		t.Errorf("maps %v, want libcuda alone: PyTorch is not CUDA", libs)
	}
	if got := len(tr.probedLibraries()); got != 2 {
		t.Errorf("%d libraries are probed, want libcuda and libc10", got)
	}
	for _, e := range entries {
		t.Run(e.Symbol, func(t *testing.T) {
			for _, result := range []int32{0, 2} {
				tr.drain()
				p.do(fmt.Sprintf("%s %d %d", e.Symbol, calls, result), e.Symbol)
				events := tr.drain()
				want := event.Event{Op: e.Op, Result: result, Device: event.NoDevice}
				if e.Level == Torch { // whose function returns nothing
					want = event.Event{Op: e.Op, Size: 1000, Handle: 2000, Part: 3000, Device: 1}
				}
				good := count(events, func(g *event.Event) bool {
					return apiName(g.API) == e.Symbol && g.Op == want.Op && g.Result == want.Result && g.Size == want.Size &&
						g.Handle == want.Handle && g.Part == want.Part && g.Device == want.Device && tr.stacks[g.Stack] >= 2
				})
				n := calls
				if e.class == classCause {
					n = 0 // what is inside it names it
				}
				if good != n || len(events) != n {
					t.Errorf("%d of %d events are as they should be, want %d:%s", good, len(events), n, format(events))
				}
			}
		})
	}
	missing := tr.missing()
	for path, symbols := range missing {
		if strings.Contains(path, "libc10") {
			t.Errorf("%s misses %q", path, symbols)
		}
	}
	tr.wantLoss(nil)
}
