package state

import (
	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/ledger"
)

// A listener hears of changes in the ledger of a layer.
type listener struct {
	ledger.NoListener
	s *State
}

func (h listener) Changed(x *ledger.Site) {
	if h.s.onChange != nil {
		h.s.onChange(x)
	}
}

func (h listener) Leaving(x *ledger.Site) { h.s.groups.count(x) }

// A driverListener hears of changes in the ledger of the driver layer. Tensors lie in its
// Extents.
type driverListener struct {
	listener
	ledger.Extents
}

// Peaked leaves it to the peaks: the driver's own memory counts, too.
func (h driverListener) Peaked(event.Process) bool { return false }
