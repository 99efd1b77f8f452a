package unwind

import (
	"bytes"
	"errors"
	"maps"
	"regexp"
	"runtime"
	"strconv"
	"testing"

	"github.com/cilium/ebpf"

	"github.com/gpumemtrace/gpumemtrace/bpf"
)

// What kernels allow, and what of it is for those that need more than the ones
// that were tried.
const (
	verifierLimit = 1_000_000 // BPF_COMPLEXITY_LIMIT_INSNS, include/linux/bpf.h
	mostVerified  = verifierLimit * 9 / 10
	// From Linux 6.19 on task storage comes from kmalloc_nolock, which has nothing
	// larger than 8 KiB (KMALLOC_MAX_CACHE_SIZE), with the kernel's own header.
	storageLimit  = 8 << 10 // bytes
	storageHeader = 256     // bytes; struct bpf_local_storage_elem has 128 and less
)

// processed is how the verifier ends its log (print_verification_stats).
var processed = regexp.MustCompile(`processed (\d+) insns \(limit (\d+)\)`)

// loadAll loads every program, until the test ends.
func loadAll(t *testing.T) (*ebpf.Collection, *Unwinder) {
	t.Helper()
	own, err := bpf.LoadGpumemtrace()
	if err != nil {
		t.Fatal(err)
	}
	coll, err := ebpf.NewCollectionWithOptions(own, ebpf.CollectionOptions{Programs: ebpf.ProgramOptions{LogLevel: logLevel}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(coll.Close)
	u, err := Start(t.Context(), Options{Maps: coll.Maps})
	if ve, ok := errors.AsType[*ebpf.VerifierError](err); ok {
		t.Fatalf("%+v", ve)
	} else if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { u.Close() })
	return coll, u
}

// What the verifier of this kernel has to do for each program, as it says, also
// before Linux 5.16, which does not keep it.
func TestVerifierLimit(t *testing.T) {
	coll, u := loadAll(t)
	programs := maps.Clone(coll.Programs)
	programs[exitProgram], programs[copyProgram] = u.kernel.exit, u.kernel.copy
	for name, p := range programs {
		m := processed.FindStringSubmatch(p.VerifierLog)
		if m == nil {
			t.Errorf("%s: the verifier does not say what it did: %q", name, p.VerifierLog)
			continue
		}
		n, _ := strconv.Atoi(m[1])
		t.Logf("%s: %d instructions of %s", name, n, m[2])
		if n > mostVerified {
			t.Errorf("%s takes the verifier %d instructions, more than %d", name, n, mostVerified)
		}
		if info, err := p.Info(); err != nil {
			t.Error(err)
		} else if told, ok := info.VerifiedInstructions(); ok && int(told) != n {
			t.Errorf("%s: the kernel says %d instructions as well", name, told)
		}
	}
}

func specs(t *testing.T) map[string]*ebpf.MapSpec {
	t.Helper()
	all := map[string]*ebpf.MapSpec{}
	for _, load := range []func() (*ebpf.CollectionSpec, error){bpf.LoadGpumemtrace, bpf.LoadUnwind} {
		spec, err := load()
		if err != nil {
			t.Fatal(err)
		}
		maps.Copy(all, spec.Maps)
	}
	return all
}

func TestTaskStorageLimit(t *testing.T) {
	found := false
	for name, m := range specs(t) {
		if m.Type != ebpf.TaskStorage {
			continue
		}
		found = true
		t.Logf("%s: %d bytes of %d, header included", name, m.ValueSize+storageHeader, storageLimit)
		if m.ValueSize+storageHeader > storageLimit {
			t.Errorf("%s: a value of %d bytes, with %d for the kernel's header, is more than %d", name, m.ValueSize, storageHeader, storageLimit)
		}
	}
	if !found {
		t.Error("no task storage")
	}
}

// The programs of uprobes run on the task's stack (gm_task_stack): one of the CPU's would
// be two threads' at a time. What the kernel made of a program shows it.
func TestStackIsTheTasks(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the instruction that is looked for is x86-64's")
	}
	// add r9, gs:OFFSET, by which a private stack is found (emit_private_frame_ptr,
	// arch/x86/net/bpf_jit_comp.c).
	private := []byte{0x65, 0x4c, 0x03, 0x0c, 0x25}
	coll, u := loadAll(t)
	programs := map[string]*ebpf.Program{
		exitProgram: u.kernel.exit, "gm_call_enter": coll.Programs["gm_call_enter"], "gm_call_exit": coll.Programs["gm_call_exit"],
	}
	for name, p := range programs {
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		code, _ := info.JitedInsns()
		if len(code) == 0 {
			t.Fatalf("%s: the kernel does not show its instructions", name)
		}
		if bytes.Contains(code, private) {
			t.Errorf("%s has a stack of the CPU's", name)
		}
	}
}
