package live

import "github.com/gpumemtrace/gpumemtrace/internal/testing/livetest"

// sizedLook is livetest.Sized as a snapshot.
func sizedLook(second int, name string, held ...int64) *Snapshot {
	s, sites := livetest.Sized(second, name, held...)
	return &Snapshot{Snapshot: s, Sites: sites}
}
