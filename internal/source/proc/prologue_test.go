package proc

import (
	"encoding/hex"
	"strings"
	"testing"
)

// Where the probe of a function lies, by how the function begins.
func TestPrologue(t *testing.T) {
	for _, c := range []struct {
		name, code string
		want       int
	}{
		{"push %rbp", "55 4889e5", 0},
		{"endbr64; push %r12", "f30f1efa 4154", 4},
		{"cmpl $7,gate(%rip); push %rbx", "833d11223344 07 53", 7},
		{"cmpl $0x321cba00,gate(%rip); je", "813d11223344 00ba1c32 7410", 10},
		{"cmpl $7,gate(%rip); jne, 32 bits", "833d11223344 07 0f8500010000", 7},
		{"mov gate(%rip),%eax; test %eax,%eax; je", "8b0511223344 85c0 7410", 8},
		{"mov %rdi,%rax; lea 8(%rsi),%r10; xor %r11d,%r11d; push %rbx", "4889f8 4c8d5608 4531db 53", 10},
		{"mov gate(%rip),%eax; jmp", "8b0511223344 e900010000", 6},

		{"mov %edi,%esi: an argument", "89fe 53", 0},
		{"xor %ecx,%ecx: an argument", "31c9 53", 0},
		{"mov $1,%r8d: an argument", "41b801000000 53", 0},
		{"movzbl %dil,%edi: an argument", "400fb6ff 53", 0},
		{"mov $1,%dl: part of an argument", "b201 53", 0},
		{"sub $24,%rsp", "4883ec18 53", 0},
		{"mov %rax,%rsp", "4889c4 53", 0},
		{"mov %rdi,-8(%rsp): memory", "48897c24f8 53", 0},
		{"add %eax,gate(%rip): memory", "010511223344 53", 0},
		{"call: it pushes on a shadow stack, too", "e811223344 53", 0},
		{"jmp *gate(%rip)", "ff2511223344 53", 0},
		{"syscall", "0f05 53", 0},
		{"pop %rbx", "5b 53", 0},
		{"ret", "c3 53", 0},
		{"xchg %eax,%ebx", "93 53", 0},
		{"jmp with 16 bits", "66e91122 53", 0},
		{"cut off", "833d112233", 0},
		{"nothing", "", 0},
		{"bytes that are no instruction", "06 53", 0},
		{"nothing that the kernel carries out", strings.Repeat("4889f8", 40) + "53", 0},

		{"mov $2,%eax; test; 1: je; sub $1,%eax; jmp 1b", "b802000000 85c0 7405 83e801 ebf9", 0},
		{"the same by a jump of 32 bits", "b802000000 85c0 7405 83e801 e9f6ffffff", 0},
		{"the same, but to the test", "b802000000 85c0 7405 83e801 ebf7", 7},
	} {
		code, err := hex.DecodeString(strings.ReplaceAll(c.code, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		for _, before := range []string{"", "\xcc\xcc\xcc\xc3"} {
			if got := prologue([]byte(before+string(code)), len(before)); got != c.want {
				t.Errorf("%s, behind %d bytes: +%d, want +%d", c.name, len(before), got, c.want)
			}
		}
	}
}

// A jump from in front of a function leads to where its probe would lie.
func TestPrologueJumpedToFromBefore(t *testing.T) {
	code, _ := hex.DecodeString("eb09" + "cccc" + "833d1122334407" + "53")
	if got := prologue(code, 4); got != 0 {
		t.Errorf("+%d, want +0", got)
	}
	code[1]++
	if got := prologue(code, 4); got != 7 {
		t.Errorf("a jump to behind it: +%d, want +7", got)
	}
}

// Whatever a file holds, the probe lies at the function's start, or not far behind
// it at an instruction that the kernel carries out and nothing jumps to.
func FuzzPrologue(f *testing.F) {
	for _, code := range []string{"f30f1efa4154", "833d112233440753", "8b051122334485c07410", "b80200000085c0740583e801ebf9", "4889f84c8d56084531db53"} {
		b, _ := hex.DecodeString(code)
		f.Add(b, uint16(0))
		f.Add(append([]byte{0xeb, 0x07}, b...), uint16(2))
	}
	f.Fuzz(func(t *testing.T, around []byte, start uint16) {
		if int(start) > len(around) {
			return
		}
		at := prologue(around, int(start))
		if at == 0 {
			return
		}
		if at < 0 || at >= maxPrologue || !carriedOut(around[int(start)+at:]) || jumpedTo(around, int(start)+at) {
			t.Errorf("%x: +%d", around[start:], at)
		}
	})
}
