package unwind

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// What a Python program says of one of its calls (testdata/truth.py).
type truth struct {
	tid    uint32
	name   string // of the case
	frames []string
}

// UnmarshalJSON reads [tid, case, [[function, file, line], ...]].
func (c *truth) UnmarshalJSON(b []byte) error {
	var frames [][3]any
	if err := json.Unmarshal(b, &[]any{&c.tid, &c.name, &frames}); err != nil {
		return err
	}
	for _, f := range frames {
		c.frames = append(c.frames, fmt.Sprintf("%v %v:%v", f[0], f[1], f[2]))
	}
	return nil
}

// The CPythons that are tried, with the system's own: those that pyenv keeps, or
// that the path has.
const oldestPython, newestPython = 8, 14

// A cpython is an interpreter, and what it is called in a test.
type cpython struct{ name, path string }

// pythonsToCompare returns an interpreter of each minor version that is here. The environment's CPYTHONS
// says how many there are at least, beside the system's.
func pythonsToCompare(t *testing.T) []cpython {
	t.Helper()
	found := make(map[int]bool)
	candidates := installedPythons()
	for minor := oldestPython; minor <= newestPython; minor++ {
		if path, err := exec.LookPath(fmt.Sprintf("python3.%d", minor)); err == nil {
			candidates = append(candidates, path)
		}
	}
	tried := 0 // the system's
	var seen []string
	var pythons []cpython
	for _, python := range candidates {
		name := "CPython 3."
		out, err := exec.Command(python, "-c", "import sys; print(sys.version_info[1])").Output()
		if err != nil {
			continue // a shim for a version that is not active
		}
		minor, err := strconv.Atoi(strings.TrimSpace(string(out)))
		if err != nil || minor < oldestPython || minor > newestPython || found[minor] {
			continue
		}
		real, err := filepath.EvalSymlinks(python)
		if err != nil || slices.Contains(seen, real) {
			continue
		}
		seen = append(seen, real)
		if python == systemPython { // built otherwise than others of its version
			name = "the system's CPython 3."
			tried = minor
		} else {
			found[minor] = true
		}
		pythons = append(pythons, cpython{fmt.Sprint(name, minor), python})
	}
	if tried == 0 {
		skip(t, "no "+systemPython)
	}
	if wanted, _ := strconv.Atoi(os.Getenv("CPYTHONS")); len(found) < wanted {
		t.Fatalf("CPYTHONS asks for %d versions of CPython, and %d are here", wanted, len(found))
	}
	for m := oldestPython; m <= newestPython; m++ {
		if !found[m] && m != tried {
			t.Logf("not tried: CPython 3.%d, which is not here", m)
		}
	}
	return pythons
}

// truthWays are the ways in which stacks are compared with the truth.
func truthWays() []Options {
	if testing.Short() {
		return []Options{{}} // they differ in the kernel alone
	}
	return []Options{{}, {VerifyStacks: 1}}
}

// TestTruth compares each frame of each call with what Python itself says. Every call
// comes three times, with others between: the memo answers most of the later ones, and
// is believed, or compared with an unwind.
func TestTruth(t *testing.T) {
	pythons := pythonsToCompare(t)
	for _, opts := range truthWays() {
		t.Run(fmt.Sprintf("verify %d", opts.VerifyStacks), func(t *testing.T) {
			c := newCapture(t, opts)
			for _, python := range pythons {
				t.Run(python.name, func(t *testing.T) {
					c.begin(t)
					compareTruth(t, c, python.path, "testdata/truth.py", "3")
				})
			}
		})
	}
}

// TestTruthBackward does so in PyTorch's backward pass, and in modules of modules.
func TestTruthBackward(t *testing.T) {
	torchtest.Need(t)
	t.Setenv("OMP_NUM_THREADS", "1")
	for _, opts := range truthWays() {
		t.Run(fmt.Sprintf("verify %d", opts.VerifyStacks), func(t *testing.T) {
			compareTruth(t, newCapture(t, opts), systemPython, "testdata/truth_torch.py", "3")
		})
	}
}

// compareTruth runs a program that says what calls it made, and compares.
func compareTruth(t *testing.T, c *capture, python, program, rounds string) {
	t.Helper()
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	library := buildLibrary(t)
	path := filepath.Join(t.TempDir(), "told.json")
	before := c.stats()
	p := startTarget(t, python, program, path, rounds)
	c.trace(p.pid)
	c.attach(library, symbol, 1)
	p.run()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var truths []truth
	if err := json.Unmarshal(b, &truths); err != nil {
		t.Fatal(err)
	}
	c.detach(uint64(len(truths)))

	want := make(map[uint32][]truth) // by thread, in the order of its calls
	for _, call := range truths {
		want[call.tid] = append(want[call.tid], call)
	}
	wrong, calls, unnamed := make(map[string]int), make(map[string]int), 0
	told := make(map[string]bool) // one of each sort
	var cases []string
	for _, e := range c.events {
		if len(want[e.tid]) == 0 {
			t.Fatalf("thread %d made a call that it does not tell of", e.tid)
		}
		call := want[e.tid][0]
		want[e.tid] = want[e.tid][1:]
		if calls[call.name]++; calls[call.name] == 1 {
			cases = append(cases, call.name)
		}
		if slices.Contains(pythonFrames(c.stacks[e.stack].Frames), freedFrame) {
			unnamed++
		}
		if problem := compareFrames(c.stacks[e.stack], call.frames); problem != "" {
			wrong[call.name]++
			if key := call.name + problem; len(told) < 100 && !told[key] {
				told[key] = true
				t.Errorf("%s, call %d: %s\nwant %s\ngot  %s", call.name, calls[call.name], problem,
					abridged(call.frames), abridged(c.names(e.stack)))
			}
		}
	}
	for _, name := range cases {
		if wrong[name] > 0 {
			t.Errorf("%s: %d of %d calls differ", name, wrong[name], calls[name])
		}
	}
	if unnamed > 0 {
		t.Errorf("of %d stacks of %d code was freed before it was named", unnamed, len(truths))
	}
	s := c.stats()
	hits, n := s.MemoHits-before.MemoHits, uint64(len(truths))
	t.Logf("%d calls, %d from the memo, %d verified, %d not fit for it", n, hits,
		s.Verified-before.Verified, s.NotStored-before.NotStored)
	if hits < n/2 {
		t.Errorf("%d of %d calls from the memo, want half and more", hits, n)
	}
	if s.Mismatched != before.Mismatched {
		t.Errorf("%d answers of the memo contradict an unwind", s.Mismatched-before.Mismatched)
	}
}

// wholeFrames is how many frames a stack has at least that does not show them all.
const wholeFrames = 512

// compareFrames says in what s and the Python frames that it should have differ, or "".
func compareFrames(s Stack, want []string) string {
	if s.Err != nil {
		return s.Err.Error()
	}
	if s.Truncated == 0 {
		return difference("frames differ", pythonFrames(s.Frames), want)
	}
	leafward, rootward := pythonFrames(s.Frames[:s.TruncatedAt]), pythonFrames(s.Frames[s.TruncatedAt:])
	lack := len(want) - len(leafward) - len(rootward)
	switch {
	case len(s.Frames) < wholeFrames:
		return fmt.Sprintf("cut to %d frames", len(s.Frames))
	case lack < 0 || lack > s.Truncated:
		return fmt.Sprintf("%d Python frames lack of %d that are said to", lack, s.Truncated)
	case len(rootward) == 0:
		return "cut without the root's last frames"
	}
	if problem := difference("frames before the cut differ", leafward, want[:len(leafward)]); problem != "" {
		return problem
	}
	return difference("frames after the cut differ", rootward, want[len(want)-len(rootward):])
}

// freedFrame is one whose code was freed before it was named.
const freedFrame = "(freed)"

// pythonFrames are those of frames that are Python's, as a truth has them.
func pythonFrames(frames []Frame) []string {
	var python []string
	for _, f := range frames {
		switch {
		case f.Kind == Python && f.Reason == errCodeReplaced.Error():
			python = append(python, freedFrame)
		case f.Kind == Python:
			python = append(python, fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
		}
	}
	return python
}

// difference says, after what, where two lists begin to differ, or "".
func difference(what string, have, want []string) string {
	for i := range max(len(have), len(want)) {
		at := fmt.Sprintf("%s at frame %d of %d: ", what, i, len(want))
		switch {
		case i >= len(have):
			return at + "no " + want[i]
		case i >= len(want):
			return at + have[i] + " too many"
		case have[i] != want[i] && have[i] != freedFrame:
			return at + have[i] + ", want " + want[i]
		}
	}
	return ""
}

// abridged shows the ends of a long list.
func abridged(frames []string) string {
	const end = 12
	if len(frames) > 2*end {
		frames = slices.Concat(frames[:end], []string{fmt.Sprintf("... %d more ...", len(frames)-2*end)}, frames[len(frames)-end:])
	}
	return strings.Join(frames, " < ")
}
