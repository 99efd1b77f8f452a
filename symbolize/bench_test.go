package symbolize

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func BenchmarkLocateHit(b *testing.B) {
	s := newSymbolizer(b, Config{})
	pid, pc := uint32(os.Getpid()), uint64(reflect.ValueOf(BenchmarkLocateHit).Pointer())
	s.Locate(pid, pc, Exact)
	b.ReportAllocs()
	for b.Loop() {
		s.Locate(pid, pc, Exact)
	}
}

// A process that is seen for the first time: its mappings are read and the
// file is opened.
func BenchmarkLocateFirst(b *testing.B) {
	pid, pc := uint32(os.Getpid()), uint64(reflect.ValueOf(BenchmarkLocateHit).Pointer())
	for b.Loop() {
		s := New(Config{})
		if a := s.Locate(pid, pc, Exact); a.mapped() == nil {
			b.Fatal(a.reason)
		}
		s.Close()
	}
}

func BenchmarkResolveHit(b *testing.B) {
	s := newSymbolizer(b, Config{})
	a := s.Locate(uint32(os.Getpid()), uint64(reflect.ValueOf(BenchmarkLocateHit).Pointer()), Exact)
	s.Resolve(a)
	b.ReportAllocs()
	for b.Loop() {
		s.Resolve(a)
	}
}

// An address with inlined functions, in a unit that is parsed already.
func BenchmarkResolveInlined(b *testing.B) {
	exe := filepath.Join(b.TempDir(), "templates")
	command(b, "g++", "-g", "-O2", "-std=c++17", "testdata/templates.cc", "-o", exe, "-pthread")
	im := openFile(b, newSymbolizer(b, Config{}), exe)
	var at uint64
	for _, fn := range functionsOf(b, exe) {
		if fn.names["main"] {
			at = fn.start + fn.size/2
		}
	}
	if lines, _ := im.resolve(at, &mapping{}); len(lines) == 0 || lines[0].Line == 0 {
		b.Fatalf("got %v", lines)
	}
	for b.Loop() {
		im.resolve(at, &mapping{})
	}
}

// The largest library of the machine, from opening it to the first name.
func BenchmarkIndexLargeLibrary(b *testing.B) {
	var path string
	var size int64
	for _, dir := range []string{"/usr/lib", "/usr/local/lib"} {
		filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || !strings.Contains(d.Name(), ".so") {
				return nil
			}
			if i, err := d.Info(); err == nil && i.Size() > size {
				path, size = p, i.Size()
			}
			return nil
		})
	}
	if path == "" {
		b.Fatal("the machine has no library")
	}
	spans := 0
	b.ReportAllocs()
	for b.Loop() {
		im := openFile(b, newSymbolizer(b, Config{}), path)
		im.resolve(0, &mapping{})
		spans = len(im.syms.spans)
		im.close()
	}
	b.ReportMetric(float64(size)/(1<<20), "MiB-file")
	b.ReportMetric(float64(spans), "spans")
	b.ReportMetric(float64(spans)*float64(reflect.TypeFor[span]().Size())/(1<<20), "MiB-index")
	b.Logf("%s", path)
}
