package export

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/render"
)

// ofFreers divides the tensors that samples made by the stack that freed them, which a few
// frames stand for. Live tensors are a row too, and so are tensors freed at an unknown
// stack.
var ofFreers = parts{
	face:  &turnover,
	lacks: []string{"peak_bytes"},
	of: func(s *snapshot.Snapshot, part func(*snapshot.Sample, string, snapshot.Values) *snapshot.Sample) {
		left := make([]amount, len(s.Samples))
		for i := range s.Samples {
			if s.Samples[i].Kind == snapshot.Tensor {
				left[i].add(&s.Samples[i])
			}
		}
		for i := range s.Freed {
			f := &s.Freed[i]
			rest := &left[f.Sample]
			v := snapshot.Values{AllocBytes: min(f.Bytes, rest.FreedBytes), AllocObjects: min(f.Objects, rest.FreedObjects)}
			rest.FreedBytes, rest.FreedObjects = rest.FreedBytes-v.AllocBytes, rest.FreedObjects-v.AllocObjects
			part(&s.Samples[f.Sample], render.Brief(f.By, 2), v)
		}
		for i := range left {
			x := &s.Samples[i]
			part(x, "[in use]", snapshot.Values{AllocBytes: left[i].InuseBytes, AllocObjects: left[i].InuseObjects, InuseBytes: left[i].InuseBytes, InuseObjects: left[i].InuseObjects})
			part(x, "[not known]", snapshot.Values{AllocBytes: left[i].FreedBytes, AllocObjects: left[i].FreedObjects})
		}
	},
}
