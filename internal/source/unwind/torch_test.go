package unwind

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// TestTorch traces PyTorch's own allocations of CPU memory: stacks through
// libc10, libtorch and CPython, forward and backward. 99.9 % must be complete.
func TestTorch(t *testing.T) {
	torchtest.Need(t)
	t.Setenv("OMP_NUM_THREADS", "1")
	ways := []Options{
		{Attach: ebpf.AttachTraceUprobeMulti},
		{Attach: ebpf.AttachTraceUprobeMulti, VerifyStacks: 1},
		{Attach: ebpf.AttachTraceUprobeMulti, NoMemo: true},
	}
	if testing.Short() {
		ways = ways[:1] // they differ in the kernel alone
	}
	for _, opts := range ways {
		p := startTarget(t, "/usr/bin/python3", "testdata/train.py", "20")
		c := newCapture(t, opts, p.pid)
		c.attach(mappedFile(t, p.pid, "libc.so.6"), "posix_memalign", 1)
		p.run()
		for _, l := range c.links {
			l.Close()
		}
		c.links = nil
		s := c.stats()
		frames, most, python := 0, 0, 0
		for _, st := range c.stacks {
			frames += len(st.Frames)
			most = max(most, len(st.Frames))
			if slices.ContainsFunc(st.Frames, func(f Frame) bool { return filepath.Base(f.File) == "train.py" }) {
				python++
			}
		}
		t.Logf("cost %.0f ns, %d stacks, %d frames on average, %d at most, loss %v",
			c.cost(), len(c.stacks), frames/max(1, len(c.stacks)), most, c.loss())
		if python != len(c.stacks) || python < 50 {
			t.Errorf("%d of %d stacks reach the script", python, len(c.stacks))
		}
		if all := s.MemoHits + s.Unwound + s.UnknownProcess; all == 0 || (s.Incomplete+s.UnknownProcess)*1000 > all {
			t.Errorf("%d of %d incomplete", s.Incomplete+s.UnknownProcess, all)
		}
		if s.Mismatched != 0 {
			t.Errorf("%d mismatches", s.Mismatched)
		}
	}
}

// mappedFile returns the path of the file of that name that the process maps.
func mappedFile(t testing.TB, pid int, name string) string {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if path := strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]); filepath.Base(path) == name {
			return path
		}
	}
	t.Fatalf("process maps no %s", name)
	return ""
}
