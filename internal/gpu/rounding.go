package gpu

// Granularity is the driver's unit of physical device memory in bytes.
const Granularity = 2 << 20

// Rounding adds up what the driver holds beyond the sizes asked for. The zero
// value is ready. Every allocation that is added must be removed with the same
// size.
//
// Sizes from one granule are rounded up to whole ones; smaller ones share
// granules (on driver 580, 24 allocations of one byte grew a process by one).
// For those it is the least that can be: a scattered remainder shows under
// context and driver instead. Stream-ordered memory comes from a pool with a
// reserve of its own and must not be added.
type Rounding struct {
	large int64 // slack of sizes of a granule and more
	small int64 // bytes of smaller ones
}

// Add counts an allocation of size bytes.
func (r *Rounding) Add(size int64) { r.add(size, 1) }

// Remove takes back an Add.
func (r *Rounding) Remove(size int64) { r.add(size, -1) }

func (r *Rounding) add(size, sign int64) {
	if size >= Granularity {
		r.large += sign * slack(size)
	} else {
		r.small += sign * size
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
	return (Granularity - n%Granularity) % Granularity
}
