package probes

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// A lendingTaker takes stacks by a program of its own.
type lendingTaker struct {
	StackTaker
	exit *ebpf.Program
}

func (l lendingTaker) Load(map[string]*ebpf.Map, map[string]any, ebpf.AttachType, *btf.Cache) (*ebpf.Program, error) {
	return l.exit, nil
}

// The taker's program takes the place of this package's: that is not loaded, and runs
// that the kernel skips are counted of those programs that run.
func TestTakersProgram(t *testing.T) {
	needTracing(t)
	exit, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.Kprobe, AttachType: attachType(), License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer exit.Close()
	tr, err := Open(Options{Stacks: lendingTaker{exit: exit}})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	if tr.kernel.ownExit {
		t.Error("a return program was loaded that does not run")
	}
	want := len(lifePrograms) + 4
	if attachType() == attachSession {
		want++ // backProgram
	}
	if len(tr.kernel.programs()) != want || !slices.Contains(tr.kernel.programs(), exit) {
		t.Errorf("counts runs of %d programs, want %d, the taker's among them", len(tr.kernel.programs()), want)
	}
}
