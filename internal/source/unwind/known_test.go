package unwind

import (
	"errors"
	"os"
	"testing"

	"github.com/cilium/ebpf"
)

// The mappings of two images of a process, or of two processes, never have the same
// generation: the memo goes by it.
func TestGenerationsDiffer(t *testing.T) {
	u, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	const pid = 1 << 22 // more than the kernel gives
	seen := map[uint32]bool{}
	for range 3 {
		for range 2 {
			if err := u.Invalidate(pid); err != nil {
				t.Fatal(err)
			}
			generation := u.generation(t, pid)
			if generation == 0 || seen[generation] {
				t.Errorf("%d after %v", generation, seen)
			}
			seen[generation] = true
		}
		if err := u.known.forget(pid); err != nil {
			t.Error(err)
		}
		if err := u.known.forget(pid); err != nil {
			t.Errorf("twice: %v", err)
		}
	}
}

// The function that calls modules stays known when the memo is emptied, also if it was found
// before the first analysis ended, and is forgotten with its process.
func TestModuleCallIsKept(t *testing.T) {
	u, err := Start(t.Context(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	pid := os.Getpid()
	wrapper, inner := moduleCall{0x1000, true}, moduleCall{0x2000, false}
	find := func(call moduleCall, wanted bool) {
		t.Helper()
		if got := u.known.wantsModuleCall(pid, call); got != wanted {
			t.Errorf("%+v is wanted: %t", call, got)
		} else if wanted {
			u.known.callsModules(pid, call)
		}
	}
	check := func(want moduleCall) {
		t.Helper()
		for range 2 {
			if got := u.moduleCall(t, pid); got != want.object {
				t.Errorf("%#x calls modules, want %#x", got, want.object)
			}
			if err := u.Invalidate(pid); err != nil {
				t.Fatal(err)
			}
		}
	}
	find(inner, true)
	if err := u.Invalidate(pid); err != nil {
		t.Fatal(err)
	}
	check(inner)
	find(inner, false)
	find(wrapper, true)
	check(wrapper)
	find(inner, false)
	find(moduleCall{0x3000, true}, true) // its code was loaded again
	check(moduleCall{0x3000, true})
	if err := u.known.forget(pid); err != nil {
		t.Fatal(err)
	}
	if err := u.Invalidate(pid); err != nil {
		t.Fatal(err)
	}
	check(moduleCall{})
	const ended = 1 << 22 // more than the kernel gives
	u.known.callsModules(ended, wrapper)
	if n := len(u.known.moduleCalls); n != 0 {
		t.Errorf("%d processes have a function", n)
	}
}

// generation returns that of a process's mappings, 0 for a process that is not known.
func (u *Unwinder) generation(t testing.TB, pid int) uint32 {
	t.Helper()
	var p knownProcess
	if err := u.known.kernel.Lookup(uint32(pid), &p); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		t.Fatal(err)
	}
	return p.Mappings
}
