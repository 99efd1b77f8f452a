package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/event"

// granule is the driver's unit of physical device memory in bytes.
const granule = 2 << 20

// Rounding adds up what the driver holds beyond the sizes asked for. The zero
// value is ready.
//
// Sizes from one granule are rounded up to whole ones; smaller ones share
// granules (on driver 580, 24 allocations of one byte grew a process by one).
// For those it is the least that can be: a scattered remainder shows under
// context and driver instead.
type Rounding struct {
	large int64 // slack of sizes of a granule and more
	small int64 // bytes of smaller ones
}

// rounds tells whether the driver rounds each allocation of kind k. That of
// stream-ordered ones is their pool's, which has a reserve of its own.
func rounds(k event.Kind) bool {
	return k.Class() == event.ClassDevice && k != event.KindAsync
}

// add counts an allocation of so many bytes, or with as many negative ones its
// end.
func (r *Rounding) add(bytes int64) {
	switch {
	case bytes >= granule:
		r.large += slack(bytes)
	case bytes <= -granule:
		r.large -= slack(-bytes)
	default:
		r.small += bytes
	}
}

// Merge adds what another one counted.
func (r *Rounding) Merge(other Rounding) {
	r.large += other.large
	r.small += other.small
}

// Bytes is the slack of all that was added.
func (r *Rounding) Bytes() int64 { return r.large + slack(r.small) }

// slack is what is missing to the next whole granule.
func slack(n int64) int64 {
	return (granule - n%granule) % granule
}
