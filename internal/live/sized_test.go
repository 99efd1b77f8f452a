package live

import "github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"

// sizedLook is livetest.Sized as a Look.
func sizedLook(second int, name string, held ...int64) *Look {
	s, sites := livetest.Sized(second, name, held...)
	return &Look{Snapshot: s, Sites: sites}
}
