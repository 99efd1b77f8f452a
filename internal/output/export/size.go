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
	of: func(s *snapshot.Snapshot) (out []*snapshot.Sample, size map[*snapshot.Sample]string) {
		size = map[*snapshot.Sample]string{}
		part := func(of *snapshot.Sample, name string, v snapshot.Values) *snapshot.Sample {
			x := &snapshot.Sample{Stack: of.Stack, Labels: of.Labels, Values: v}
			out, size[x] = append(out, x), name
			return x
		}
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
			k := key{a.Sample, bits.Len64(uint64(max(a.Size, 0)))}
			if found[k] == nil {
				found[k] = part(of, sizeClass(k.digits), snapshot.Values{})
			}
			one := &snapshot.Values{InuseBytes: a.Size, InuseObjects: 1}
			found[k].Add(one)
			rest[a.Sample].Sub(one)
		}
		for i := range rest {
			if rest[i] != (snapshot.Values{}) {
				part(&s.Samples[i], "", rest[i])
			}
		}
		return out, size
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
