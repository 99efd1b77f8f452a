package unwind

import (
	"context"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// From Linux 6.13 on a BPF program with this much stack and no tail call gets a
// stack that belongs to the CPU (BPF_PRIV_STACK_MIN_SIZE,
// kernel/bpf/verifier.c), and a uprobe's program may be preempted by another
// thread's, which then writes over it.
const privateStack = 64

func TestNoProgramHasPrivateStack(t *testing.T) {
	for _, load := range []func() (*ebpf.CollectionSpec, error){bpf.LoadGpumemtrace, bpf.LoadUnwindExit, bpf.LoadUnwind} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		checked := 0
		for name, prog := range spec.Programs {
			if prog.Type != ebpf.Kprobe {
				continue
			}
			checked++
			stack, tail := stackBytes(prog.Instructions), hasTailCall(prog.Instructions)
			t.Logf("%s: %d bytes, tail call %v", name, stack, tail)
			if stack >= privateStack && !tail {
				t.Errorf("%s uses %d bytes of stack and has no tail call", name, stack)
			}
		}
		if checked == 0 {
			t.Error("no uprobe programs")
		}
	}
}

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

// stackBytes returns how far below the frame pointer the instructions reach.
func stackBytes(insns asm.Instructions) int64 {
	var deepest int64
	copies := make(map[asm.Register]bool) // hold the frame pointer
	for _, ins := range insns {
		class, op := ins.OpCode.Class(), ins.OpCode.ALUOp()
		switch {
		case class.IsStore() && ins.Dst == asm.RFP:
			deepest = min(deepest, int64(ins.Offset))
		case class.IsLoad() && ins.Src == asm.RFP:
			deepest = min(deepest, int64(ins.Offset))
		case class.IsALU() && op == asm.Mov && ins.OpCode.Source() == asm.RegSource:
			copies[ins.Dst] = ins.Src == asm.RFP
		case class.IsALU() && op == asm.Add && copies[ins.Dst] && ins.OpCode.Source() == asm.ImmSource:
			deepest = min(deepest, ins.Constant)
			copies[ins.Dst] = false
		}
	}
	return -deepest
}

func hasTailCall(insns asm.Instructions) bool {
	for _, ins := range insns {
		if ins.IsBuiltinCall() && ins.Constant == int64(asm.FnTailCall) {
			return true
		}
	}
	return false
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
