package probes

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrace/gpumemtrace/internal/testing/testcuda"
)

// BenchmarkProbe measures what the probes add to one call, the stack by frame pointers
// included: the same process without them and with them, in each way that a link can hold
// them, and with another process traced, in turn. It takes the least of each.
func BenchmarkProbe(b *testing.B) {
	const rounds = 20000
	p, other := start(b, testcuda.Workload, testcuda.Options{}), start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "init")
	run(b, other, "init")
	once := func() float64 {
		begin := time.Now()
		run(b, p, fmt.Sprintf("repeat %d { cuMemAlloc_v2 512; cuMemFree_v2 }", rounds))
		return float64(time.Since(begin)) / (2 * rounds)
	}
	once()
	times := map[string][]float64{}
	probed := func(pid int, opts Options) float64 {
		tr := openTrace(b, opts)
		tr.target(pid)
		done := make(chan error)
		go func() { done <- tr.Run(counter{}, nil) }()
		defer func() {
			if err := errors.Join(tr.Stop(), <-done, tr.Close()); err != nil {
				b.Fatal(err)
			}
		}()
		return once()
	}
	for b.Loop() {
		times["without"] = append(times["without"], once())
		for name, attach := range map[string]ebpf.AttachType{"session": attachSession, "multi": ebpf.AttachTraceUprobeMulti} {
			needAttach(b, attach)
			opts := Options{Follow: true, attach: by(attach)}
			times[name] = append(times[name], probed(p.PID(), opts))
			times[name+"-bystander"] = append(times[name+"-bystander"], probed(other.PID(), opts))
		}
	}
	b.ReportMetric(slices.Min(times["without"]), "ns/call-without")
	for _, name := range []string{"session", "multi", "session-bystander", "multi-bystander"} {
		b.ReportMetric(slices.Min(times[name])-slices.Min(times["without"]), "ns/added-"+name)
	}
	b.ReportMetric(0, "ns/op")
}

// BenchmarkPrograms measures what the programs take of a call that allocates, its
// stack by frame pointers included, and of one that frees, by the kernel's own
// statistics, which add some 40 ns to it.
func BenchmarkPrograms(b *testing.B) {
	const rounds = 20000
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "init")
	stats, err := ebpf.EnableStats(0)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, symbol := range []string{"cuMemAlloc_v2", "cuMemFree_v2"} {
		b.Run(symbol, func(b *testing.B) {
			tr := openTrace(b, Options{})
			if err := tr.targets.add(p.PID(), others); err != nil {
				b.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- tr.Run(counter{}, nil) }()
			a, err := attachRows(openLibrary(b, testcuda.Get(b).LibCUDA), tr.kernel.progs, nil, func(r *Row) bool { return r.Symbols[0] == symbol })
			if err != nil {
				b.Fatal(err)
			}
			calls := 0
			for b.Loop() {
				run(b, p, fmt.Sprintf("repeat %d { cuMemAlloc_v2 512; cuMemFree_v2 }", rounds))
				calls += rounds
			}
			// In a session one program runs at the entry and calls the other at the return.
			sum, runs := time.Duration(0), uint64(0)
			for _, program := range []*ebpf.Program{tr.kernel.progs.enter, tr.kernel.progs.exit} {
				s, err := program.Stats()
				if err != nil {
					b.Fatal(err)
				}
				sum, runs = sum+s.Runtime, runs+s.RunCount
			}
			if runs < 2*uint64(calls) {
				b.Fatalf("%d runs of %d calls", runs, calls)
			}
			b.ReportMetric(float64(sum.Nanoseconds())/float64(calls), "ns/call")
			b.ReportMetric(0, "ns/op")
			if err := errors.Join(a.detach(), tr.Stop(), <-done); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// BenchmarkTensors measures what a tensor made or freed costs, its stack by frame pointers
// included, and with an empty program on the same probe, the floor: the longer call, and the
// program by the kernel's own statistics, which add some 20 ns to each.
func BenchmarkTensors(b *testing.B) {
	const rounds = 20000
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "tensor 8m; tensor 512") // the segment stays, and so does its first tensor
	once := func() time.Duration {
		begin := time.Now()
		run(b, p, fmt.Sprintf("repeat %d { tensor 4096; untensor 1 }", rounds))
		return time.Since(begin) / (2 * rounds)
	}
	once()
	stats, err := ebpf.EnableStats(0)
	if err != nil {
		b.Fatal(err)
	}
	defer stats.Close()
	for _, x := range []struct {
		name  string
		empty bool
	}{{"empty", true}, {"all", false}} {
		b.Run(x.name, func(b *testing.B) {
			tr := openTrace(b, Options{Tensors: true})
			if err := tr.targets.add(p.PID(), others); err != nil {
				b.Fatal(err)
			}
			done := make(chan error)
			go func() { done <- tr.Run(counter{}, nil) }()
			progs := tr.kernel.progs
			if x.empty {
				progs.tensor = loadEmpty(b, progs.attach)
			}
			lib := openLibrary(b, filepath.Join(filepath.Dir(testcuda.Get(b).LibCUDA), "libc10.so"))
			lib.Level = Torch
			least, without := time.Hour, time.Hour
			for b.Loop() {
				without = min(without, once())
				a, err := attachRows(lib, progs, nil, func(r *Row) bool { return r.class == classTensor })
				if err != nil {
					b.Fatal(err)
				}
				least = min(least, once())
				if err := a.detach(); err != nil {
					b.Fatal(err)
				}
			}
			s, err := progs.tensor.Stats()
			if err != nil || s.RunCount < 2*rounds {
				b.Fatalf("%d runs: %v", s.RunCount, err)
			}
			b.ReportMetric(float64(least-without), "ns/call-added")
			b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "ns/program")
			b.ReportMetric(0, "ns/op")
			if err := errors.Join(tr.Stop(), <-done); err != nil {
				b.Fatal(err)
			}
		})
	}
}

// emptyProgram returns a program that does nothing, for a uprobe.
func loadEmpty(tb testing.TB, attach ebpf.AttachType) *ebpf.Program {
	tb.Helper()
	result := int32(0)
	if attach == attachSession {
		result = 1 // the return is not wanted
	}
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: attach, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, result), asm.Return()},
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { prog.Close() })
	return prog
}

// BenchmarkAttach measures how long a process waits for its first event: the
// library's symbols are read, and each gets two probes.
func BenchmarkAttach(b *testing.B) {
	p := start(b, testcuda.Workload, testcuda.Options{})
	for b.Loop() {
		tr, err := Open(Options{})
		if err != nil {
			b.Fatal(err)
		}
		begin := time.Now()
		if _, err := tr.Target(p.PID()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(begin).Microseconds())/1000, "ms/target")
		if err := tr.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkRequests measures what a request to the kernel driver takes longer with
// the probes on the calls of ioctl, and with one on its stub: one that the table has
// no row for, and one that allocates or frees, its stack by frame pointers included.
func BenchmarkRequests(b *testing.B) {
	const rounds = 20000
	file := testcuda.Get(b).LibCUDA
	offsets, err := offsetsOf(file, known)
	if err != nil {
		b.Fatal(err)
	}
	lib := openLibrary(b, file)
	stub, _ := choose(Driver, offsets, func(r *Row) bool { return r.class == classEscape })
	e, err := lib.elf()
	if err != nil {
		b.Fatal(err)
	}
	calls := locate(e, Driver, stub)
	if len(calls) == 0 || calls[0].back == 0 {
		b.Fatalf("%+v", calls)
	}
	p := start(b, testcuda.Workload, testcuda.Options{})
	run(b, p, "raw cuInit 0", "words params 0 0 0x1c101 0 0 0 0x11800000 0x100005 0 0 0 0 0:64 0:64 8192:64 0x1000:64 0:64",
		"words a client device0 0x51 0x40 &params 0:64 128 0 -1", "words f client device0 0x51 -1",
		"words none client client 0 0 0:64 0 -1")
	tr := openTrace(b, Options{})
	if err := tr.targets.add(p.PID(), others); err != nil {
		b.Fatal(err)
	}
	done := make(chan error)
	go func() { done <- tr.Run(counter{}, nil) }()
	for _, request := range []struct {
		name, commands string
		count          time.Duration
	}{
		{"other", "ioctl 0x2a 32 none", 1},
		{"memory", "ioctl 0x2b 48 a; ioctl 0x29 16 f", 2},
	} {
		once := func() time.Duration {
			begin := time.Now()
			run(b, p, fmt.Sprintf("repeat %d { %s }", rounds, request.commands))
			return time.Since(begin) / (rounds * request.count)
		}
		for _, where := range []struct {
			name   string
			points []point
		}{{"calls", calls}, {"stub", stub}} {
			b.Run(request.name+"/"+where.name, func(b *testing.B) {
				least, without := time.Hour, time.Hour
				for b.Loop() {
					without = min(without, once())
					a := &attachment{}
					if err := a.attach(lib.file.Link(), tr.kernel.progs, where.points, 0); err != nil {
						b.Fatal(err)
					}
					least = min(least, once())
					if err := a.detach(); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(without), "ns/request-without")
				b.ReportMetric(float64(least-without), "ns/request-added")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
	if err := errors.Join(tr.Stop(), <-done); err != nil {
		b.Fatal(err)
	}
}
