package unwind

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf/link"
)

// rowTensor is a row of GM_CLASS_TENSOR: the event of an entry. Argument 1 is the size, which is
// negative or 0 where memory is taken back.
const rowTensor = 4

// attachEntry probes the entry of the library's function as rowTensor.
func (c *capture) attachEntry(library string) {
	c.t.Helper()
	value := make([]byte, c.base.Maps["rows"].ValueSize())
	value[0], value[2] = 10, 1 // GM_CLASS_TENSOR, GM_ROW_STACK
	if err := c.base.Maps["rows"].Put(uint32(rowTensor), value); err != nil {
		c.t.Fatal(err)
	}
	ex, err := link.OpenExecutable(library)
	if err != nil {
		c.t.Fatal(err)
	}
	l, err := ex.Uprobe(symbol, c.base.Programs["gm_tensor_enter"], &link.UprobeOptions{Cookie: rowTensor})
	if err != nil {
		c.t.Fatal(err)
	}
	c.links = append(c.links, l)
}

// BenchmarkTensor reports what the kernel spends on a tensor that is made or freed, by the
// kernel's own statistics.
func BenchmarkTensor(b *testing.B) {
	measure := func(b *testing.B, count int, program string, args ...string) {
		p := startTarget(b, program, args...)
		c := newCapture(b, Options{}, p.pid)
		c.attachEntry(buildLibrary(b))
		p.run()
		c.detach(uint64(count))
		s, err := c.base.Programs["gm_tensor_enter"].Stats()
		if err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(s.Runtime.Nanoseconds())/float64(s.RunCount), "kernel-ns/event")
	}
	const many = 100_000
	for name, order := range map[string]string{"free": "0", "native_39_frames_64_paths": "1"} {
		b.Run(name, func(b *testing.B) {
			measure(b, many, buildProgram(b, "gcc", "paths", "-O2", "-fomit-frame-pointer", "testdata/paths.c"), strconv.Itoa(many), order)
		})
	}
	for _, version := range []string{"3.11", "3.12", "3.13"} {
		for _, frames := range []int{13, 30} {
			b.Run(fmt.Sprintf("python_%s_%d_frames", version, frames), func(b *testing.B) {
				i := slices.IndexFunc(installedPythons(), func(p string) bool { return strings.Contains(p, "/"+version) })
				if i < 0 {
					skip(b, "no CPython "+version)
				}
				buildLibrary(b)
				measure(b, many/2, installedPythons()[i], "testdata/deep.py", strconv.Itoa(many/2), strconv.Itoa(frames))
			})
		}
	}
}
