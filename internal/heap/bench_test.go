package heap

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// BenchmarkRead reads the heaps of running programs with 500,000 objects.
func BenchmarkRead(b *testing.B) {
	python := installed(b)
	for _, minor := range slices.Sorted(maps.Keys(python)) {
		b.Run(fmt.Sprintf("CPython 3.%d", minor), func(b *testing.B) {
			p := start(b, python[minor], []string{"PYTHONPATH=" + buildStandin(b, python[minor])}, "testdata/many.py", "500000")
			for b.Loop() {
				r, err := Read(context.Background(), p.pid, Options{Keys: AllKeys, CPU: true})
				if err != nil || len(r.Storages) < 100 {
					b.Fatal(err, r)
				}
				b.ReportMetric(float64(r.Objects), "objects")
			}
		})
	}
}

// BenchmarkReadBlocks reads the heap of a program with 500,000 objects, 100,000 tensors and as many blocks of
// PyTorch's allocator. peak-MiB is what this process takes in all, with what it has anyway.
func BenchmarkReadBlocks(b *testing.B) {
	const tensors = 100_000
	python := installed(b)
	newest := python[slices.Max(slices.Collect(maps.Keys(python)))]
	library := filepath.Join(b.TempDir(), allocatorFile)
	run(b, "g++", "-std=c++17", "-O1", "-shared", "-fPIC", "-DLIBRARY", "-Dmain=unused", "-o", library, "testdata/allocator.cc")
	p := start(b, newest, []string{"PYTHONPATH=" + buildStandin(b, newest)}, "testdata/blocks.py", "500000", fmt.Sprint(tensors), library)
	for b.Loop() {
		r, err := Read(context.Background(), p.pid, Options{})
		if err != nil || len(r.Storages) < tensors || len(r.Allocators) != 1 || len(r.Allocators[0].Blocks) < tensors {
			b.Fatal(err, r.Refused, r.NoAllocators, len(r.Storages))
		}
	}
	var used unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(used.Maxrss>>10), "peak-MiB")
}

// A counter counts what is read of a memory.
type counter struct {
	Memory
	bytes  int64
	blocks map[uint64]bool
}

func (m *counter) ReadAt(to []byte, address uint64) (int, error) {
	n, err := m.Memory.ReadAt(to, address)
	m.bytes += int64(n)
	m.blocks[address/blockSize] = true
	return n, err
}

// A heap is not read again and again, in whatever order its objects lie on their lists.
func TestReadsLittle(t *testing.T) {
	python := installed(t)
	minor := slices.Max(slices.Collect(maps.Keys(python)))
	p := start(t, python[minor], []string{"PYTHONPATH=" + buildStandin(t, python[minor])}, "testdata/many.py", "300000")
	where, err := FindRuntime(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	m := &counter{Memory: processMemory(p.pid), blocks: map[uint64]bool{}}
	r, err := ReadMemory(context.Background(), m, where, Options{Keys: AllKeys, CPU: true})
	if err != nil {
		t.Fatal(err)
	}
	if r.Refused != "" || r.Objects < 300_000 {
		t.Fatal(r.Refused, r.Objects)
	}
	if all := int64(len(m.blocks)) * blockSize; m.bytes > 5*all {
		t.Errorf("%d bytes were read of %d", m.bytes, all)
	} else {
		t.Logf("%d bytes were read of %d", m.bytes, all)
	}
}
