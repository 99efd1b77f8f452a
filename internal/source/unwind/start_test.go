package unwind

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/bpf"
	"github.com/gpumemtrace/gpumemtrace/internal/testing/torchtest"
)

// An ended process is forgotten: one that gets its PID can be analysed.
func TestForget(t *testing.T) {
	p := startTarget(t, buildCalls(t), "10")
	c := newCapture(t, Options{}, p.pid)
	p.run()
	p.end()
	c.u.Ended(p.pid)
	for end := time.Now().Add(5 * time.Minute); c.u.kernel.known(uint32(p.pid)); time.Sleep(time.Millisecond) {
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

// BenchmarkAnalyze is the time that a PyTorch process takes to be analysed: without
// what earlier runs left, and with it.
func BenchmarkAnalyze(b *testing.B) {
	torchtest.Need(b)
	b.Setenv("OMP_NUM_THREADS", "1")
	p := startTarget(b, "/usr/bin/python3", "testdata/train.py", "1")
	dir := filepath.Join(b.TempDir(), "cache")
	for _, warm := range []bool{false, true} {
		b.Run(map[bool]string{false: "cold", true: "warm"}[warm], func(b *testing.B) {
			var cpu time.Duration
			for b.Loop() {
				b.StopTimer()
				if !warm {
					if err := os.RemoveAll(dir); err != nil {
						b.Fatal(err)
					}
				}
				u, err := Start(context.Background(), Options{CacheDir: dir})
				if err != nil {
					b.Fatal(err)
				}
				before := cpuTime()
				b.StartTimer()
				if err := u.Analyze(context.Background(), p.pid); err != nil {
					b.Fatal(err)
				}
				b.StopTimer()
				cpu += cpuTime() - before
				if err := u.Close(); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
			b.ReportMetric(float64(cpu.Milliseconds())/float64(b.N), "cpu-ms/op")
		})
	}
}

// cpuTime is what this process has used, of all threads.
func cpuTime() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
