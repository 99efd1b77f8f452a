package probes

import "testing"

// Behind an extent that is passed by value, arm64 finds each argument one
// register further on: the extent's address takes one.
func TestArgumentsBehindAnExtent(t *testing.T) {
	for _, c := range []struct {
		symbol, arch string
		want         [8]uint8 // as the row names its values
	}{
		// array, desc and desc again, width, height, depth, levels.
		{"cudaMallocMipmappedArray", "amd64", [8]uint8{0, 1, 1, 4, 5, 6, 2, 7}},
		{"cudaMallocMipmappedArray", "arm64", [8]uint8{0, 1, 1, 4, 5, 6, 3, 7}},
		{"cudaMalloc3DArray", "arm64", [8]uint8{0, 1, 1, 4, 5, 6, 7, 7}},
		{"cudaMalloc3D", "arm64", [8]uint8{0, 0, 4, 5, 6, 7, 7, 7}},
		// No extent.
		{"cuMipmappedArrayCreate", "arm64", [8]uint8{0, 1, 1, 1, 1, 1, 2, 7}},
	} {
		e := Entries[entryIndex(c.symbol)]
		var got [8]uint8
		for i, capture := range e.plan.kernelRow(e.class, c.arch).Captures {
			got[i] = capture.Arg
		}
		if got != c.want {
			t.Errorf("%s on %s: arguments %v, want %v", c.symbol, c.arch, got, c.want)
		}
	}
}
