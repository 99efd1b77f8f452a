package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// Whatever a process names libcuda.so.1, on both machines: no panic, and only
// offsets within the executable part of the file.
func FuzzStubs(f *testing.F) {
	seeds := [][]byte{small(f, "stubs-amd64.so"), small(f, "stubs-arm64.so"), small(f, "calls-amd64.so")}
	for machine, seed := range seeds {
		whole := uint32(len(seed))
		f.Add(uint8(machine), uint32(0), binary.LittleEndian.Uint64(seed), whole)
		// The sections, word by word: where they are, how large, what they link to.
		table, count := binary.LittleEndian.Uint64(seed[40:]), binary.LittleEndian.Uint16(seed[60:])
		for at := uint32(table); at < uint32(table)+uint32(count)*sectionSize; at += 8 {
			f.Add(uint8(machine), at, uint64(1<<64-1), whole)
		}
	}
	f.Fuzz(func(t *testing.T, machine uint8, at uint32, word uint64, size uint32) {
		seed := seeds[int(machine)%len(seeds)]
		b := bytes.Clone(seed[:min(int(size), len(seed))])
		if len(b) >= 8 {
			binary.LittleEndian.PutUint64(b[int(at)%(len(b)-7):], word)
		}
		checkFile(t, b)
	})
}

// stubsOf returns the stubs of a file's ioctl and close.
func stubsOf(t *testing.T, b []byte) map[string]uint64 {
	t.Helper()
	e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	stubs, err := e.Stubs(func(name []byte) bool { return string(name) == "ioctl" || string(name) == "close" })
	if err != nil {
		t.Fatal(err)
	}
	return stubs
}

// objdump -d shows the same.
func TestStubsOfSmall(t *testing.T) {
	for name, want := range map[string]map[string]uint64{
		"stubs-amd64.so": {"ioctl": 0x240, "close": 0x250},
		"stubs-arm64.so": {"ioctl": 0x2b0, "close": 0x2c0},
		"small.so":       nil,
	} {
		b := small(t, name)
		if got := stubsOf(t, b); !maps.Equal(got, want) {
			t.Errorf("%s: %#x, want %#x", name, got, want)
		}
		if want == nil {
			continue
		}
		// Where the loader finds the code says a segment alone.
		table, count := binary.LittleEndian.Uint64(b[40:]), binary.LittleEndian.Uint16(b[60:])
		for s := b[table:][:int(count)*sectionSize]; len(s) > 0; s = s[sectionSize:] {
			if kind := elf.SectionType(binary.LittleEndian.Uint32(s[4:])); kind == elf.SHT_PROGBITS {
				clear(s[24:32])
			}
		}
		if got := stubsOf(t, b); !maps.Equal(got, want) {
			t.Errorf("%s, sections elsewhere: %#x, want %#x", name, got, want)
		}
		// Another machine's code, and slots, are none.
		for _, machine := range []elf.Machine{elf.EM_X86_64, elf.EM_AARCH64, elf.EM_RISCV} {
			was := elf.Machine(binary.LittleEndian.Uint16(b[18:]))
			binary.LittleEndian.PutUint16(b[18:], uint16(machine))
			if got := stubsOf(t, b); machine != was && len(got) != 0 {
				t.Errorf("%s, %s: %#x", name, machine, got)
			}
			binary.LittleEndian.PutUint16(b[18:], uint16(was))
		}
	}
}

// A stub begins with its bti.
func TestStubsWithBTI(t *testing.T) {
	b := small(t, "stubs-arm64.so")
	binary.LittleEndian.PutUint32(b[0x2ac:], 0xd503245f) // a nop before ioctl's
	if got, want := stubsOf(t, b), map[string]uint64{"ioctl": 0x2ac, "close": 0x2c0}; !maps.Equal(got, want) {
		t.Errorf("%#x, want %#x", got, want)
	}
}

// command returns what a tool of the compiler prints.
func command(t *testing.T, name string, args ...string) string {
	t.Helper()
	text, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		if errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") != "true" {
			t.Skip(err)
		}
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, text)
	}
	return string(text)
}

// Libraries linked in each way that this machine's linker has, against what
// objdump calls a stub.
func TestStubs(t *testing.T) {
	type way struct {
		flags string
		found int
		code  string // that each stub begins with
	}
	ways := map[string]way{
		"default":       {"", 2, ""},
		"lazy":          {"-Wl,-z,lazy", 2, ""},
		"now":           {"-Wl,-z,now", 2, ""},
		"stripped":      {"-s -Wl,-z,lazy", 2, ""},
		"one segment":   {"-Wl,-z,noseparate-code", 2, ""},
		"address":       {"-Wl,-Ttext-segment=0x10000000", 2, ""},
		"without stubs": {"-fno-plt", 0, ""},
	}
	if runtime.GOARCH == "amd64" {
		maps.Copy(ways, map[string]way{
			"lazy":     {"-Wl,-z,lazy", 2, "\xff\x25"},
			"ibt":      {"-fcf-protection=full -Wl,-z,ibtplt,-z,lazy", 2, "\xf3\x0f\x1e\xfa"},
			"ibt, now": {"-fcf-protection=full -Wl,-z,ibtplt,-z,now", 2, "\xf3\x0f\x1e\xfa"},
		})
	}
	label := regexp.MustCompile(`(?m)^[0-9a-f]+ <(ioctl|close)@plt> \(File Offset: 0x([0-9a-f]+)\):`)
	for name, w := range ways {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "libstubs.so")
			command(t, "gcc", append([]string{"-shared", "-fPIC", "-Os", "-o", path, "testdata/stubs.c"}, strings.Fields(w.flags)...)...)
			want := map[string]uint64{}
			for _, m := range label.FindAllStringSubmatch(command(t, "objdump", "-d", "-F", path), -1) {
				want[m[1]], _ = strconv.ParseUint(m[2], 16, 64)
			}
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			stubs := stubsOf(t, b)
			if len(want) != w.found || !maps.Equal(stubs, want) {
				t.Errorf("%#x, want %d, %#x", stubs, w.found, want)
			}
			for name, offset := range stubs {
				if !strings.HasPrefix(string(b[offset:]), w.code) {
					t.Errorf("%s begins with % x", name, b[offset:offset+8])
				}
			}
			// Without its table of sections, it has no functions either.
			clear(b[40:48])
			clear(b[60:64])
			e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
			if err != nil {
				t.Fatal(err)
			}
			stubs, err = e.Stubs(all)
			functions, ferr := e.Functions(all)
			if err != nil || ferr != nil || len(stubs)+len(functions) != 0 {
				t.Errorf("without sections: %v, %v, %v, %v", stubs, err, functions, ferr)
			}
		})
	}
}

// The instructions are those that binutils 2.40 writes.
func TestSlot(t *testing.T) {
	words := func(w ...uint32) string {
		var b []byte
		for _, w := range w {
			b = binary.LittleEndian.AppendUint32(b, w)
		}
		return string(b)
	}
	const (
		adrp, ldr, add, br = 0xd000cbb0, 0xf9415211, 0x910a8210, 0xd61f0220 // of libcuda 550.163.01
		bti, aut, nop      = 0xd503245f, 0xd503219f, 0xd503201f
	)
	for _, c := range []struct {
		name   string
		decode func([]byte, uint64) (uint64, bool)
		code   string
		want   uint64 // 0 for no stub
	}{
		{"jmp of libcuda 550.163.01", slotX86, "\xff\x25\x7a\x9b\x98\x01", 0x1a68480},
		{"jmp back", slotX86, "\xff\x25\xfa\xff\xff\xff", 0xde900},
		{"bnd jmp", slotX86, "\xf2\xff\x25\x00\x00\x00\x00", 0xde907},
		{"endbr64, jmp", slotX86, "\xf3\x0f\x1e\xfa\xff\x25\x00\x00\x00\x00", 0xde90a},
		{"endbr64, bnd jmp", slotX86, "\xf3\x0f\x1e\xfa\xf2\xff\x25\x00\x00\x00\x00", 0xde90b},
		{"call", slotX86, "\xff\x15\x7a\x9b\x98\x01", 0},
		{"jmp cut off", slotX86, "\xff\x25\x7a\x9b\x98", 0},
		{"endbr64, push", slotX86, "\xf3\x0f\x1e\xfa\x68\x00\x00\x00\x00", 0},
		{"nothing", slotX86, "", 0},

		{"adrp, ldr, add, br", slotARM, words(adrp, ldr, add, br), 0x1a542a0},
		{"adrp, ldr, br", slotARM, words(adrp, ldr, br), 0x1a542a0},
		{"bti", slotARM, words(bti, adrp, ldr, add, br), 0x1a542a0},
		{"autia1716", slotARM, words(adrp, ldr, add, aut, br), 0x1a542a0},
		{"both", slotARM, words(bti, adrp, ldr, add, aut, br), 0x1a542a0},
		{"adrp back", slotARM, words(0xf0fffff0, ldr, add, br), 0xdd2a0},
		{"another register", slotARM, words(adrp+1, ldr, add, br), 0},
		{"nop", slotARM, words(adrp, nop, ldr, add, br), 0},
		{"blr", slotARM, words(adrp, ldr, add, 0xd63f0220), 0},
		{"cut off", slotARM, words(adrp, ldr, add), 0},
		{"nothing on AArch64", slotARM, "", 0},
	} {
		got, ok := c.decode([]byte(c.code), 0xde900)
		if got != c.want || ok != (c.want != 0) {
			t.Errorf("%s: %#x, %v, want %#x", c.name, got, ok, c.want)
		}
	}
}

// A file's own name is what its linker was told, whatever it is called.
func TestSONAME(t *testing.T) {
	dir := t.TempDir()
	for name, flags := range map[string][]string{"": nil, "libcuda.so.1": {"-Wl,-soname,libcuda.so.1"}} {
		file := filepath.Join(dir, "lib.so")
		command(t, "gcc", append([]string{"-shared", "-nostdlib", "-fPIC", "-o", file, "testdata/stubs.c"}, flags...)...)
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
		if err != nil {
			t.Fatal(err)
		}
		if got := e.SONAME(); got != name {
			t.Errorf("%q, want %q", got, name)
		}
	}
}
