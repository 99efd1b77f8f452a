package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// The verifier accepts every program, for either way of attaching, and with what it
// does not look at where not every tensor is told.
func TestLoad(t *testing.T) {
	for i, attach := range []ebpf.AttachType{ebpf.AttachNone, ebpf.AttachTraceUprobeMulti, ebpf.AttachNone} {
		spec, err := LoadGpumemtrace()
		if err != nil {
			t.Fatal(err)
		}
		if i == 2 {
			if err := errors.Join(spec.Variables["cfg_tensor_sample"].Set(uint64(1<<20)), spec.Variables["cfg_tensor_min"].Set(uint64(1<<10))); err != nil {
				t.Fatal(err)
			}
		}
		for _, name := range []string{"gm_call_enter", "gm_call_exit"} {
			spec.Programs[name].AttachType = attach
		}
		coll, err := ebpf.NewCollection(spec)
		if ve, ok := errors.AsType[*ebpf.VerifierError](err); ok {
			t.Fatalf("%+v", ve)
		} else if err != nil {
			t.Fatal(err)
		}
		for name, p := range coll.Programs {
			info, err := p.Info()
			if err != nil {
				t.Fatal(err)
			}
			n, _ := info.VerifiedInstructions()
			t.Logf("%v %s: %d instructions verified", attach, name, n)
		}
		coll.Close()
	}
}
