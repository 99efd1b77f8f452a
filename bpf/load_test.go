package bpf

import (
	"errors"
	"testing"

	"github.com/cilium/ebpf"
)

// The verifier accepts every program, for each way of attaching.
func TestLoad(t *testing.T) {
	const session = ebpf.AttachType(57) // BPF_TRACE_UPROBE_SESSION, which loads on any kernel
	for _, c := range []struct {
		attach  ebpf.AttachType
		session uint32
	}{{ebpf.AttachNone, 0}, {ebpf.AttachTraceUprobeMulti, 0}, {session, 1}} {
		spec, err := LoadGpumemtrace()
		if err != nil {
			t.Fatal(err)
		}
		attach := c.attach
		if err := spec.Variables["cfg_session"].Set(c.session); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"gm_call_enter", "gm_call_back", "gm_call_exit", "gm_tensor_enter"} {
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
