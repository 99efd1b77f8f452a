package probes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
)

// Probes on the calls of ioctl tell the same as one on its stub, which a library has
// that jumps there, too, or that says it can do with a shadow stack: each request of
// the table, with what was answered, also where another call was seen before it
// returned. A call that makes none of those has no probe.
func TestRequests(t *testing.T) {
	ways := map[string][]string{"calls": nil, "stub": {"-DTAIL"}}
	if runtime.GOARCH == "amd64" {
		ways["shadow stack"] = []string{"-Wl,-z,shstk"}
	}
	for name, flags := range ways {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "libcuda.so.1")
			compile(t, file, "requests.c", append(flags, "-fPIC", "-shared", "-fplt", "-Wl,-z,lazy", "-Wl,-soname,libcuda.so.1")...)
			compile(t, filepath.Join(dir, "requests"), "requestsmain.c", file, "-Wl,-rpath,$ORIGIN")

			offsets, err := offsetsOf(file, known)
			if err != nil {
				t.Fatal(err)
			}
			points, _ := choose(Driver, offsets, func(r *Row) bool { return r.class == classEscape })
			stub := points
			e, err := openLibrary(t, file).elf()
			if err != nil {
				t.Fatal(err)
			}
			points = locate(e, Driver, points)
			if runtime.GOARCH == "amd64" && name == "calls" {
				back := func(p point) bool { return p.back > p.at && p.offset == stub[0].offset }
				if len(points) != 2 || !back(points[0]) || !back(points[1]) {
					t.Errorf("%+v, want two calls", points)
				}
			} else if !slices.Equal(points, stub) {
				t.Errorf("%+v, want the stub %+v", points, stub)
			}

			const calls = 300
			p := spawn(t, exec.Command(filepath.Join(dir, "requests")), "up")
			tr := openTrace(t, Options{Kernel: true})
			tr.target(p.pid())
			p.do(fmt.Sprint(calls), "wrong 0")
			type seen struct {
				api    string
				handle uint64
				result int32
			}
			got := map[seen]int{}
			for _, e := range tr.drain() {
				if e.API != 0 {
					got[seen{apiName(e.API), e.Handle, e.Result}]++
				}
			}
			want := map[seen]int{
				{"NV_ESC_RM_FREE", 1<<32 | 3, 0}:    calls,
				{"NV_ESC_RM_FREE", 1<<32 | 4, 0}:    calls,
				{"NV_ESC_RM_FREE", 1<<32 | 0x77, 0}: calls,
				{"cuMemAlloc_v2", 0, 0}:             calls,
			}
			for s, n := range want {
				if got[s] != n {
					t.Errorf("%+v: %d, want %d", s, got[s], n)
				}
				delete(got, s)
			}
			interrupted := 0
			for s, n := range got {
				if s.api != "NV_ESC_RM_FREE" || s.handle != 1<<32|3 {
					t.Errorf("%+v: %d", s, n)
				}
				interrupted += n
			}
			if interrupted < calls/3 {
				t.Errorf("%d interrupted", interrupted)
			}
			tr.wantLoss(nil)
		})
	}
}

// Which requests get a probe is what gm_escape lets by.
func TestRequestNumbers(t *testing.T) {
	escapes := kernelEscapes()
	for nr := range uint32(256) {
		for _, high := range []uint32{0, 0xc0100000} {
			want := nr == 211 || escapes[uint8(nr)] != nil
			if got := requests(high | 'F'<<8 | nr); got != want {
				t.Errorf("%#x: %t, want %t", nr, got, want)
			}
			if requests(high|nr) || requests(high|'f'<<8|nr) {
				t.Errorf("%#x of another driver", nr)
			}
		}
	}
}
