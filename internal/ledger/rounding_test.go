package ledger

import "testing"

// TestRounding has the growth that NVML showed on driver 580, step by step.
func TestRounding(t *testing.T) {
	var r Rounding
	asked := int64(0)
	for _, step := range []struct {
		what        string
		size, times int64
		grown       int64
	}{
		{"one byte", 1, 1, 2097152},
		{"23 more", 1, 23, 2097152},
		{"3 MiB", 3 << 20, 1, 6291456},
		{"3 MiB and a byte", 3<<20 + 1, 1, 10485760},
		{"1 MiB", 1 << 20, 1, 10485760},
		{"1000000007", 1000000007, 1, 1010827264},
	} {
		for range step.times {
			r.add(step.size)
			asked += step.size
		}
		if asked+r.Bytes() != step.grown {
			t.Errorf("%s: %d, NVML %d", step.what, asked+r.Bytes(), step.grown)
		}
	}
	for range 24 {
		r.add(-1)
	}
	for _, s := range []int64{3 << 20, 3<<20 + 1, 1 << 20, 1000000007} {
		r.add(-s)
	}
	if r != (Rounding{}) {
		t.Errorf("%+v after all ended", r)
	}
}
