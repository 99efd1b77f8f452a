package heap

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpumemtrace/gpumemtrace/internal/model/holder"
)

// A real PyTorch, with tensors in the memory of the CPU.
func TestTorch(t *testing.T) {
	const python = "/usr/bin/python3"
	if exec.Command(python, "-c", "import torch").Run() != nil {
		skip(t, "no PyTorch for "+python)
	}
	p := start(t, python, nil, "testdata/torch_holders.py")
	for _, pause := range []bool{false, true} {
		r := read(t, p.pid, Options{Keys: true, Pause: pause})
		p.check(t, r)
		for _, want := range p.said.Storages {
			if !slices.ContainsFunc(r.Storages, func(s holder.Storage) bool { return s.Address == want[0] && s.Bytes == want[1] }) {
				t.Errorf("a storage at %#x of %d bytes was not found", want[0], want[1])
			}
		}
		// The graphs of four losses, and the losses themselves.
		first := r.Retainers[0]
		if first.Holder != "trainer.history" || first.Class != "list" || first.Items != 4 || first.Graph < 4*128*64*4 || first.Retained != first.Graph+4*4 {
			t.Errorf("%+v", first)
		}
		for _, s := range r.Storages {
			if (s.Class == "Parameter" || s.Holder == "wrapped.weight") != s.RequiresGrad && s.Role != holder.Activation && s.Role != holder.NoRole {
				t.Errorf("%+v", s)
			}
		}
	}
	r := read(t, p.pid, Options{})
	for _, s := range r.Storages {
		if slices.Contains([]byte(s.Holder), '"') && s.Holder[0] != 't' {
			t.Errorf("%s shows a key", s.Holder)
		}
		if s.Role == holder.OptimizerState && !strings.HasPrefix(s.Module, "model[") && s.Module != "wrapped" {
			t.Errorf("without keys %s has module %q", s.Holder, s.Module)
		}
	}
}
