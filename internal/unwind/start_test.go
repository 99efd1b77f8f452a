package unwind

import (
	"context"
	"os/exec"
	"testing"
	"time"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// An ended process is forgotten: one that gets its PID can be analysed.
func TestForget(t *testing.T) {
	p := startTarget(t, buildProgram(t, "gcc", "calls", "-O2", "-fomit-frame-pointer", "testdata/calls.c"), "10")
	c := newCapture(t, Options{}, p.pid)
	p.run()
	p.end()
	c.u.Ended(p.pid)
	for end := time.Now().Add(10 * time.Second); c.u.kernel.known(uint32(p.pid)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("still known")
		}
	}
	if err := c.u.Analyze(context.Background(), p.pid); err == nil {
		t.Error("analysed a process that has ended")
	}
}

// BenchmarkStart is the time until a process can be analysed.
func BenchmarkStart(b *testing.B) {
	spec, err := bpf.LoadGpumemtrace()
	if err != nil {
		b.Fatal(err)
	}
	base, err := ebpf.NewCollection(spec)
	if err != nil {
		b.Fatal(err)
	}
	defer base.Close()
	for b.Loop() {
		u, err := Start(context.Background(), Options{Attach: ebpf.AttachTraceUprobeMulti, Maps: base.Maps})
		if err != nil {
			b.Fatal(err)
		}
		if err := u.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkAnalyze is the time that a PyTorch process takes to be analysed.
func BenchmarkAnalyze(b *testing.B) {
	if err := exec.Command("/usr/bin/python3", "-c", "import torch").Run(); err != nil {
		skip(b, "no PyTorch for /usr/bin/python3")
	}
	b.Setenv("OMP_NUM_THREADS", "1")
	p := startTarget(b, "/usr/bin/python3", "testdata/train.py", "1")
	for b.Loop() {
		b.StopTimer()
		u, err := Start(context.Background(), Options{})
		if err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := u.Analyze(context.Background(), p.pid); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := u.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
