package snapshot

// Values are what a sample counts. Objects are allocations; bytes are what libcuda
// was asked for (for pitched memory, what it gave).
type Values struct {
	AllocObjects, AllocBytes int64
	PeakBytes                int64 // held when the process held most on GPUs; of other memory, when it held most of its class
	InuseObjects, InuseBytes int64
	FailedObjects            int64 // calls that failed; in none of the above
	FailedBytes              int64
}

// A Value says how outputs name and show one field of Values.
type Value struct {
	Name   string // as pprof's sample types are named
	Key    string // in JSON
	Unit   string // Bytes or Count
	Failed bool   // of calls that failed: pprof profiles do not have it
	Of     func(*Values) *int64
}

// The units of values, as pprof writes them.
const (
	Bytes = "bytes"
	Count = "count"
)

// AllValues has each value once, in the order of pprof's sample types. Every
// output goes by it.
var AllValues = [...]Value{
	{"alloc_objects", "alloc_objects", Count, false, func(v *Values) *int64 { return &v.AllocObjects }},
	{"alloc_space", "alloc_bytes", Bytes, false, func(v *Values) *int64 { return &v.AllocBytes }},
	{"peak_space", "peak_bytes", Bytes, false, func(v *Values) *int64 { return &v.PeakBytes }},
	{"inuse_objects", "inuse_objects", Count, false, func(v *Values) *int64 { return &v.InuseObjects }},
	{"inuse_space", "inuse_bytes", Bytes, false, func(v *Values) *int64 { return &v.InuseBytes }},
	{"failed_objects", "failed_objects", Count, true, func(v *Values) *int64 { return &v.FailedObjects }},
	{"failed_space", "failed_bytes", Bytes, true, func(v *Values) *int64 { return &v.FailedBytes }},
}

// Add adds w to v.
func (v *Values) Add(w *Values) {
	for i := range AllValues {
		*AllValues[i].Of(v) += *AllValues[i].Of(w)
	}
}

// Sub takes w from v.
func (v *Values) Sub(w *Values) {
	for i := range AllValues {
		*AllValues[i].Of(v) -= *AllValues[i].Of(w)
	}
}

// Succeeded reports whether v has anything beside failed calls.
func (v *Values) Succeeded() bool {
	for i := range AllValues {
		if !AllValues[i].Failed && *AllValues[i].Of(v) != 0 {
			return true
		}
	}
	return false
}
