package bpf

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// privateStack is the kernel's BPF_PRIV_STACK_MIN_SIZE: from Linux 6.13 a
// program that uses as much stack and has no tail call has one that belongs to
// the CPU, which uprobes that preempt each other would share.
const privateStack = 64

// stackOf returns how much stack a program's instructions name, and whether
// they have a tail call.
func stackOf(program asm.Instructions) (bytes int, tailCall bool) {
	use := func(offset int) { bytes = max(bytes, -offset) }
	frame := map[asm.Register]bool{asm.RFP: true} // registers that hold the frame's address
	for _, ins := range program {
		class := ins.OpCode.Class()
		switch {
		case ins.IsBuiltinCall():
			tailCall = tailCall || ins.Constant == int64(asm.FnTailCall)
		case class == asm.LdXClass && ins.Src == asm.RFP, class.IsStore() && ins.Dst == asm.RFP:
			use(int(ins.Offset))
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Mov:
			frame[ins.Dst] = ins.OpCode.Source() == asm.RegSource && ins.Src == asm.RFP
		case class.IsALU() && ins.OpCode.ALUOp() == asm.Add && ins.OpCode.Source() == asm.ImmSource && frame[ins.Dst]:
			use(int(ins.Constant))
		}
	}
	return bytes, tailCall
}

func TestStacksStayOffTheCPUs(t *testing.T) {
	for name, load := range map[string]func() (*ebpf.CollectionSpec, error){
		"gpumemtrace": LoadGpumemtrace, "unwind": LoadUnwind,
	} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		for program, p := range spec.Programs {
			bytes, tailCall := stackOf(p.Instructions)
			t.Logf("%s %s: %d bytes, tail call %t", name, program, bytes, tailCall)
			if p.Type == ebpf.Kprobe && bytes >= privateStack && !tailCall {
				t.Errorf("%s %s uses %d bytes of stack and has no tail call", name, program, bytes)
			}
		}
	}
}
