package heap

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
)

// A child that was forked after CUDA began has objects of tensors, and none of their memory. One that has CUDA of its
// own is read.
func TestForked(t *testing.T) {
	python := installed(t)
	minor := slices.Max(slices.Collect(maps.Keys(python)))
	p := start(t, python[minor], []string{"PYTHONPATH=" + buildStandin(t, python[minor])}, "-c", `
import json, mmap, os, sys, standin
class Tensor(standin.TensorBase):
    pass
held = [Tensor(100, 1), Tensor(50)]
os.mkdir(sys.argv[1] + "/dev")
file = open(sys.argv[1] + "/dev/nvidia-uvm", "wb+")
file.truncate(4096)
def drive():
    driver = mmap.mmap(file.fileno(), 4096)
    driver.madvise(mmap.MADV_DONTFORK)
    return driver
first, driver, (r, w), (ready, said) = os.getpid(), drive(), os.pipe(), os.pipe()
def fork(work):
    pid = os.fork()
    if pid == 0:
        if os.getppid() == first:
            os.close(w)  # it ends with the first process
        work()
        os.read(r, 1)
        os._exit(0)
    return pid
def grandchild():
    os.write(said, b"%20d" % fork(lambda: None))
child, own, parent = fork(lambda: None), fork(lambda: (globals().update(drive=drive()), os.write(said, b"%20d" % 0))), fork(grandchild)
others = [int(os.read(ready, 20)) for _ in range(2)]
print(json.dumps({"pid": os.getpid(), "storages": [[child, 0], [own, 1], [parent, 0], [max(others), 0], [os.getpid(), 1]]}), flush=True)
sys.stdin.readline()
`, t.TempDir())
	for _, x := range p.said.Storages {
		r, err := Read(context.Background(), int(x[0]), Options{CPU: true})
		if err != nil || r.Refused != "" {
			t.Fatalf("of process %d of %v: %v: %+v", x[0], p.said.Storages, err, r)
		}
		onGPU := uint64(0)
		for _, s := range r.Storages {
			if s.OnGPU() {
				onGPU++
			}
		}
		cpu := slices.ContainsFunc(r.Storages, func(s holder.Storage) bool { return s.OnCPU() })
		says := strings.Contains(r.NoAllocators, fmt.Sprintf("those of process %d, which forked it", p.pid))
		if onGPU != x[1] || !cpu || says != (x[1] == 0) {
			t.Errorf("of process %d: %d tensors on GPUs, want %d; on the CPU: %v; %q", x[0], onGPU, x[1], cpu, r.NoAllocators)
		}
	}
}

// Where /proc has other numbers than this process, no process is read for another.
func TestOtherNumbers(t *testing.T) {
	if os.Getenv("HEAP_TEST_NUMBERS") != "" {
		_, err := Read(context.Background(), os.Getpid(), Options{})
		fmt.Println("said:", err)
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestOtherNumbers$", "-test.v")
	cmd.Env = append(os.Environ(), "HEAP_TEST_NUMBERS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	out, err := cmd.CombinedOutput()
	if err != nil && len(out) == 0 {
		skip(t, err.Error())
	}
	if !strings.Contains(string(out), "said: /proc is of another PID namespace") {
		t.Errorf("%v: %s", err, out)
	}
}
