package proc

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// linkedCalls returns the path of a library of x86-64.
func linkedCalls(t *testing.T, source, text string, flags ...string) string {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("its calls are those of x86-64")
	}
	dir := t.TempDir()
	from, to := filepath.Join(dir, source), filepath.Join(dir, "calls.so")
	if err := os.WriteFile(from, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	command(t, "gcc", append(flags, "-shared", "-fPIC", "-fplt", "-Wl,-z,lazy", "-nostdlib", "-Wl,-z,separate-code", "-o", to, from)...)
	return to
}

// callsOfIoctl returns the calls of a file's ioctl.
func callsOfIoctl(t *testing.T, b []byte) (calls []Call, stub uint64) {
	t.Helper()
	e, err := ReadELF(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	stub = stubsOf(t, b)["ioctl"]
	if stub == 0 {
		t.Fatal("no stub")
	}
	return e.Calls(stub), stub
}

// Each is a function, or more, with calls of ioctl: how far behind each its return is
// seen, in bytes, and its second argument if that is known; nothing if the calls
// are not known to be all.
func TestCallsOf(t *testing.T) {
	// A function has its size and its start in the table for unwinding.
	const begin, end = "%s: .cfi_startproc\n", "\n.cfi_endproc\n"
	function := func(name, body string) string { return fmt.Sprintf(begin, name) + body + end }
	one := func(body string) string { return function("f", body) }
	const behind = "call ioctl@plt; test %eax, %eax; jns 1f; 1: ret"
	for name, c := range map[string]struct {
		code string
		want string
	}{
		"number":              {one("mov $0x21, %esi; mov %ebx, %edi; xor %eax, %eax; call ioctl@plt; mov %eax, %ebx; test %eax, %eax; jns 1f; nop; 1: ret"), "+9 0x21"},
		"number of 64 bits":   {one("mov $0xc020462a, %rsi; " + behind), "+7 0xc020462a"},
		"number, then data":   {one("mov $0x21, %esi; movaps %xmm0, (%rdx); mov %rdx, 8(%rdx); lea 8(%rsi), %rdx; " + behind), "+7 0x21"},
		"argument":            {one("mov %rbx, %rsi; " + behind), "+7"},
		"from memory":         {one("mov 8(%rbp), %esi; " + behind), "+7"},
		"written in part":     {one("mov $0x21, %esi; mov $3, %sil; " + behind), "+7"},
		"written by another":  {one("mov $0x21, %esi; lodsb; " + behind), "+7"},
		"added to":            {one("mov $0x21, %esi; add %ebx, %esi; " + behind), "+7"},
		"behind a call":       {one("mov $0x21, %esi; call *%rbx; " + behind), "+7"},
		"behind a branch":     {one("mov $0x21, %esi; jne 2f; 2: " + behind), "+7"},
		"entered":             {one("mov $0x22, %esi; cmp %eax, %ebx; je 3f; mov $0x21, %esi; 3: xor %eax, %eax; " + behind), "+7"},
		"entered at the call": {one("mov $0x22, %esi; cmp %eax, %ebx; je 3f; mov $0x21, %esi; 3: " + behind), "+7"},
		"entered ahead":       {one("cmp %eax, %ebx; je 3f; nop; 3: mov $0x21, %esi; " + behind), "+7 0x21"},
		"entered from afar":   {one("mov $0x21, %esi; 9: xor %eax, %eax; "+behind) + ".fill 500, 1, 0x90\n" + function("g", "mov $0x22, %esi; jmp 9b"), "+7"},
		"entered from near":   {one("mov $0x21, %esi; 9: xor %eax, %eax; "+behind) + function("g", "mov $0x22, %esi; jmp 9b"), "+7"},
		"entered by a table":  {one("mov $0x21, %esi; xor %eax, %eax; " + behind + "; notrack jmp *%rcx"), "+7"},

		"jump":               {one("call ioctl@plt; jmp 1f; 1: ret"), "+5"},
		"far jump":           {one("call ioctl@plt; cmp $-1, %eax; je 1f; .fill 300, 1, 0x90; 1: ret"), "+8"},
		"result overwritten": {one("call ioctl@plt; mov %eax, %ecx; mov 8(%rbp), %eax; cmp $-1, %ecx; je 1f; 1: ret"), "+5"},
		"in part":            {one("call ioctl@plt; mov $1, %ah; test %ecx, %ecx; je 1f; 1: ret"), "+5"},
		"memory written":     {one("call ioctl@plt; mov %eax, (%rdx); test %eax, %eax; je 1f; 1: ret"), "+5"},
		"memory compared":    {one("call ioctl@plt; cmpl $0, (%rdx); je 1f; 1: ret"), "+8"},
		"stack moved":        {one("call ioctl@plt; add $8, %rsp; je 1f; 1: ret"), "+5"},
		"returned":           {one("call ioctl@plt; pop %rbx; ret"), "+5"},
		"loop":               {one("call ioctl@plt; jrcxz 1f; 1: ret"), "+5"},

		"two functions":         {one(behind) + function("g", "mov $0x21, %esi; "+behind), "+7; +7 0x21"},
		"tail call":             {one("jmp ioctl@plt") + function("g", behind), ""},
		"conditional":           {one("jne ioctl@plt; ret") + function("g", behind), ""},
		"address":               {one("lea ioctl@plt(%rip), %rax; " + behind), ""},
		"behind a prefix":       {one(".byte 0x66; " + behind), ""},
		"not in the table":      {"f: " + behind + "\n" + function("g", behind), ""},
		"no table":              {"f: " + behind + "\n", ""},
		"no instruction":        {one(".byte 6; " + behind), ""},
		"of unknown length":     {one("vzeroupper; "+behind) + function("g", behind), ""},
		"data in between":       {one("jmp 4f; .byte 0xb8; 4: call ioctl@plt; ret"), ""},
		"looks like one":        {one("movabs $0x1122334455667788, %rax; " + behind), "+7"},
		"looks like a call":     {one(".byte 0x48, 0xb8, 0xe8, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22; " + behind), "+7"},
		"pointer by a word":     {one(behind) + ".data; .quad 0x1122334455667788; .text\n", ""},
		"pointer by relocation": {one(behind) + ".data; .quad f; .text\n", ""},
	} {
		t.Run(name, func(t *testing.T) {
			text := ".text\n" + strings.ReplaceAll(c.code, "; ", "\n") + ".section .note.GNU-stack,\"\",@progbits\n"
			b, err := os.ReadFile(linkedCalls(t, "calls.s", text))
			if err != nil {
				t.Fatal(err)
			}
			_, stub := callsOfIoctl(t, b)
			switch { // with what no assembler would write
			case strings.HasPrefix(name, "looks like"):
				at := bytes.Index(b, []byte{0x88, 0x77, 0x66, 0x55})
				binary.LittleEndian.PutUint32(b[at:], uint32(stub)-uint32(at+4)) // loaded at its offset
			case name == "pointer by a word":
				at := bytes.Index(b, []byte{0x88, 0x77, 0x66, 0x55})
				binary.LittleEndian.PutUint64(b[at:], stub)
			case name == "pointer by relocation":
				e, err := elf.NewFile(bytes.NewReader(b))
				if err != nil {
					t.Fatal(err)
				}
				binary.LittleEndian.PutUint64(b[e.Section(".rela.dyn").Offset+16:], stub)
			}
			var got []string
			calls, _ := callsOfIoctl(t, b)
			for _, c := range calls {
				s := fmt.Sprintf("+%d", c.Return-c.Offset)
				if c.Constant {
					s += fmt.Sprintf(" %#x", c.Second)
				}
				got = append(got, s)
			}
			if got := strings.Join(got, "; "); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// objdump -d shows the same. Without a table of functions, and on another machine,
// there are none.
func TestCallsOfSmall(t *testing.T) {
	for name, want := range map[string][]Call{
		"calls-amd64.so": {{Offset: 0x1038, Return: 0x103d, Second: 0x46, Constant: true}},
		"stubs-amd64.so": nil,
		"stubs-arm64.so": nil,
	} {
		if got, _ := callsOfIoctl(t, small(t, name)); !slices.Equal(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
	}
}

// What the compiler makes of C, against what objdump calls a call.
func TestCallsOfC(t *testing.T) {
	const source = `
int ioctl(int, unsigned long, ...), *__errno_location(void);
int ask(int fd, unsigned long request, void *p) { int r; do r = ioctl(fd, request, p); while (r < 0 && *__errno_location() == 4); return r; }
int map(int fd, long *p) { if (!p) return 4; p[2] = 0; if (ioctl(fd, 0x21, p) < 0) return *__errno_location(); return p[2]; }
int choose(int fd, int kind, long *p) {
	switch (kind) {
	case 0: return ioctl(fd, 0x17, p) + 1;
	case 1: p[0] = 5; return ioctl(fd, 0x18, p) + 7;
	case 2: p[1] = 9; return ioctl(fd, 0x19, p) + map(fd, p);
	case 3: return ask(fd, 0xc0104629, p) - ioctl(fd, 0x1a, p);
	case 4: return map(fd, p) * 3;
	}
	return 0;
}
double scale(int fd, double x, double *p) { p[0] = x * 3; p[1] = x / p[0]; return ioctl(fd, 0x31, p) < 0 ? x : p[1]; }`
	line := regexp.MustCompile(`(?m)^ *([0-9a-f]+):.*\tcall.*<ioctl@plt>`)
	for _, flags := range []string{"-O0", "-Os", "-O2 -fcf-protection=none", "-O2 -fcf-protection=full", "-O3 -fomit-frame-pointer", "-O2 -Wl,-z,now"} {
		t.Run(flags, func(t *testing.T) {
			file := linkedCalls(t, "calls.c", source, append(strings.Fields(flags), "-fno-optimize-sibling-calls")...)
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			want := map[uint64]bool{}
			for _, m := range line.FindAllStringSubmatch(command(t, "objdump", "-d", file), -1) {
				at, err := strconv.ParseUint(m[1], 16, 64)
				if err != nil {
					t.Fatal(err)
				}
				want[at] = true
			}
			calls, _ := callsOfIoctl(t, b)
			got := map[uint64]bool{}
			var numbers []uint32
			for _, c := range calls {
				got[c.Offset] = true
				if c.Constant {
					numbers = append(numbers, c.Second)
				}
			}
			if !maps.Equal(got, want) || len(want) < 6 {
				t.Errorf("%v, want %v", got, want)
			}
			if !slices.Contains(numbers, 0x31) {
				t.Errorf("the numbers %#x are known", numbers)
			}
		})
	}
}
