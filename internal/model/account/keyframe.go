package account

import (
	"math"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
)

// Visit writes the Accounts to a keyframe, or reads them from one. devices are those of the last
// reading.
func (a *Accounts) Visit(f *record.Fields, devices []record.Device) {
	a.devices = devices
	if f.Reading() {
		a.rest = map[string]Rest{}
	}
	record.Map(f, a.rest, 3, len(devices), func(label *string, r *Rest) {
		f.Text(label)
		record.Signed(f, &r.Bytes)
		f.Bool(&r.Known)
	})
	record.Map(f, a.figures, 3, math.MaxInt, func(id *event.Process, of *map[string]*Figure) {
		if f.Reading() {
			*of = map[string]*Figure{}
		}
		f.Process(id)
		record.Map(f, *of, 7, math.MaxInt, func(label *string, at **Figure) {
			x := record.Make(f, at)
			f.Text(label)
			record.Signed(f, &x.Total, &x.Before, &x.Difference)
			f.Bool(&x.Known, &x.Inferred, &x.Compared)
		})
	})
	record.Map(f, a.ordinals, 3, math.MaxInt, func(id *event.Process, of *map[int32]gpu) {
		if f.Reading() {
			*of = map[int32]gpu{}
		}
		f.Process(id)
		record.Map(f, *of, 3, math.MaxInt, func(ordinal *int32, x *gpu) {
			record.Signed(f, ordinal)
			f.Text(&x.uuid, &x.label)
		})
	})
	record.Map(f, a.empty, 2, math.MaxInt, func(id *event.Process, empty *bool) {
		f.Process(id)
		*empty = true
	})
	f.Loss(a.lost)
}
