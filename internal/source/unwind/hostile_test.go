package unwind

import (
	"debug/elf"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
)

// mapper maps a page of a file's code, at an offset, and waits.
const mapper = `
import mmap, sys
f = open(sys.argv[1], "rb")
m = mmap.mmap(f.fileno(), 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC, flags=mmap.MAP_PRIVATE, offset=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
`

// startMapper starts a process that maps the code of a file which looks like another.
func startMapper(t *testing.T, path, like string) *target {
	t.Helper()
	f, err := elf.Open(like)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_LOAD && p.Flags&elf.PF_X != 0 {
			return startTarget(t, systemPython, "-c", mapper, path, fmt.Sprint(p.Off&^4095))
		}
	}
	t.Fatalf("%s has no code", like)
	return nil
}

// changed returns a copy of a file with some of its bytes changed.
func changed(t *testing.T, path string, change func(b []byte)) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	change(b)
	out := filepath.Join(t.TempDir(), filepath.Base(path))
	if err := os.WriteFile(out, b, 0o755); err != nil {
		t.Fatal(err)
	}
	return out
}

// A process that maps a file with the size, the build id and the ends of a program, but
// other unwind information, does not give that to the processes that run the program.
func TestForgedProgram(t *testing.T) {
	program := buildCalls(t)
	f, err := elf.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	section := f.Section(".eh_frame")
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if end := int64(section.Offset + section.Size); section.Offset < 4096 || end > info.Size()-4096 {
		t.Fatalf(".eh_frame from %d to %d of %d bytes is near an end", section.Offset, end, info.Size())
	}
	forged := changed(t, program, func(b []byte) { clear(b[section.Offset:][:4]) }) // its end
	attacker := startMapper(t, forged, program)
	victim := startTarget(t, program, "10")
	c := newCapture(t, Options{Attach: ebpf.AttachTraceUprobeMulti}, attacker.pid, victim.pid)
	c.attach(buildLibrary(t), symbol, 1)
	victim.run()
	if s := c.stats(); s.Incomplete+s.UnknownProcess > 0 || s.Unwound == 0 {
		t.Errorf("%+v", s)
	}
}

// A file that the unwinder's own Go side cannot stand costs its process's stacks at most.
func TestHostileExecutables(t *testing.T) {
	library := buildLibrary(t)
	first := build(t, "gcc", "signalfirst.so", "-shared", "-nostdlib", "testdata/signalfirst.S")
	for name, path := range map[string]string{
		"signal's frame first": first,
		"unknown machine":      changed(t, library, func(b []byte) { binary.LittleEndian.PutUint16(b[18:], uint16(elf.EM_68K)) }),
		"sections far off":     changed(t, library, func(b []byte) { binary.LittleEndian.PutUint64(b[40:], 1<<62) }),
	} {
		t.Run(name, func(t *testing.T) {
			like := library
			if path == first {
				like = first
			}
			p := startMapper(t, path, like)
			c := newCapture(t, Options{Attach: ebpf.AttachTraceUprobeMulti}, p.pid)
			if !c.u.kernel.known(uint32(p.pid)) {
				t.Error("the process is not known")
			}
		})
	}
}
