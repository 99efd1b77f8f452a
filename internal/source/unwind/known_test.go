package unwind

import "testing"

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
			p, ok := u.known.get(pid)
			if !ok || p.Mappings == 0 || seen[p.Mappings] {
				t.Errorf("%+v, %v, after %v", p, ok, seen)
			}
			seen[p.Mappings] = true
		}
		if err := u.known.forget(pid); err != nil {
			t.Error(err)
		}
		if err := u.known.forget(pid); err != nil {
			t.Errorf("twice: %v", err)
		}
	}
	if err := u.known.watch(pid, true); err == nil {
		t.Error("watches a process that is not known")
	}
}
