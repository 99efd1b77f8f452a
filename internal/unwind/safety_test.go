package unwind

import (
	"context"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// The verifier gives up after a million instructions. It walks fewer on some
// kernels and more on others: keep away from the limit.
func TestVerifierLimit(t *testing.T) {
	u, err := Start(context.Background(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	for name, prog := range u.kernel.programs {
		info, err := prog.Info()
		if err != nil {
			t.Fatal(err)
		}
		n, ok := info.VerifiedInstructions()
		if !ok {
			t.Skip("kernel does not tell (before 5.16)")
		}
		t.Logf("%s: %d", name, n)
		if n > 500_000 {
			t.Errorf("%s takes the verifier %d instructions", name, n)
		}
	}
}

// The measure itself: a store, and an address that is passed on.
func TestStackBytes(t *testing.T) {
	for want, insns := range map[int64]asm.Instructions{
		0:   {asm.Return()},
		8:   {asm.StoreMem(asm.RFP, -8, asm.R1, asm.DWord)},
		512: {asm.Mov.Reg(asm.R2, asm.RFP), asm.Add.Imm(asm.R2, -512)},
	} {
		if got := stackBytes(insns); got != want {
			t.Errorf("%v: %d, want %d", insns, got, want)
		}
	}
}
