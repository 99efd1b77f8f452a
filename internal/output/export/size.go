package export

import (
	"math/bits"

	"github.com/gpumemtrace/gpumemtrace/internal/bytefmt"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// ofSizes divides samples by the size of each allocation, in powers of two. Only live
// allocations have a size. Memory that is no allocation has none: cached memory, and memory
// that the driver uses itself.
var ofSizes = parts{
	face:  &sized,
	lacks: []string{"peak_bytes", "alloc_bytes", "alloc_objects", "freed_bytes", "freed_objects", "net_bytes", "net_objects"},
	of: func(s *snapshot.Snapshot, part func(*snapshot.Sample, string, snapshot.Values) *snapshot.Sample) {
		type key struct{ sample, digits int }
		found := map[key]*snapshot.Sample{}
		rest := make([]snapshot.Values, len(s.Samples))
		for i := range s.Samples {
			x := &s.Samples[i]
			rest[i] = snapshot.Values{InuseBytes: x.InuseBytes, InuseObjects: x.InuseObjects}
		}
		for i := range s.Live {
			a := &s.Live[i]
			of := &s.Samples[a.Sample]
			if of.Kind == snapshot.Cached {
				continue // a segment, whose tensors have rows of their own
			}
			one := snapshot.Values{InuseBytes: a.Size, InuseObjects: 1}
			rest[a.Sample].Sub(&one)
			k := key{a.Sample, bits.Len64(uint64(max(a.Size, 0)))}
			if x := found[k]; x != nil {
				x.Add(&one)
			} else {
				found[k] = part(of, sizeClass(k.digits), one)
			}
		}
		for i := range rest {
			part(&s.Samples[i], "", rest[i])
		}
	},
}

// sizeClass names the sizes of so many binary digits.
func sizeClass(digits int) string {
	switch digits {
	case 0:
		return "0 B"
	case 63:
		return bytefmt.Format(1<<62) + " and more"
	}
	from := int64(1) << (digits - 1)
	return bytefmt.Format(from) + " to " + bytefmt.Format(2*from)
}
