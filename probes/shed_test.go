package probes

import (
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/event"
	"github.com/gpumemtrace/gpumemtrace/internal/testcuda"
)

// What is shed is stacks alone: every call is an event with its size, and what has no
// stack for it is counted. Stacks come again when there is room again.
func TestShed(t *testing.T) {
	p := start(t, testcuda.Workload, testcuda.Options{})
	tr := traced(t, p, Options{})
	var shed uint64
	for _, step := range []struct {
		shed   Shed
		stacks bool
	}{{ShedNothing, true}, {ShedTensors, true}, {ShedAll, false}, {ShedAll, false}, {ShedTensors, true}, {ShedNothing, true}} {
		if err := tr.Shed(step.shed); err != nil {
			t.Fatal(err)
		}
		run(t, p, "repeat 23 cuMemAlloc_v2 4096; repeat 7 cuMemCreate 2m; repeat 5 cuMemFree_v2")
		var bytes uint64
		n := 0
		for _, e := range tr.drain() {
			if e.Op != event.OpAlloc && e.Op != event.OpHandleCreate {
				continue
			}
			n++
			bytes += e.Size
			if (e.Stack != 0) != step.stacks {
				t.Errorf("shed %d: %s has stack %#x", step.shed, apiName(e.API), e.Stack)
			}
		}
		if n != 23+7 || bytes != 23*4096+7*2<<20 {
			t.Errorf("shed %d: %d events of %d bytes, want %d of %d", step.shed, n, bytes, 23+7, 23*4096+7*2<<20)
		}
		if !step.stacks {
			shed += 23 + 7
		}
		if got := tr.counter("stacks_shed"); got != shed {
			t.Errorf("shed %d: stacks_shed = %d, want %d", step.shed, got, shed)
		}
	}
	if err := tr.Shed(numShed); err == nil {
		t.Error("a step that there is not was taken")
	}
}

// Tensors are shed first. Each is told all the same.
func TestShedTensors(t *testing.T) {
	tr, end := heldTorch(t, Options{Tensors: true}, declareTensor, helpTensors+"made(0x1000, 1024); made(0x2000, 2048); freed(0x1000, 1024);")
	if err := tr.Shed(ShedTensors); err != nil {
		t.Fatal(err)
	}
	end()
	made, freed := 0, 0
	for _, e := range tr.drain() {
		switch {
		case e.Space != event.SpaceTensor:
		case e.Op == event.OpAlloc:
			made += int(e.Size)
		case e.Op == event.OpFree:
			freed++
		}
		if e.Stack != 0 {
			t.Errorf("%+v has a stack", e)
		}
	}
	if made != 3072 || freed != 1 {
		t.Errorf("%d bytes made, %d freed", made, freed)
	}
	tr.wantLoss(map[string]uint64{"stacks_shed": 2})
}
