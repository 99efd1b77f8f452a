package ledger

import "github.com/gpumemtrace/gpumemtrace/internal/model/event"

// hooks is a Listener made of functions. Those that are nil do nothing.
type hooks struct {
	NoListener
	changed func(*Site)
	peaked  func(event.Process)
	leaving func(*Site)
}

func (h hooks) Changed(s *Site) {
	if h.changed != nil {
		h.changed(s)
	}
}

func (h hooks) Peaked(id event.Process) bool {
	if h.peaked != nil {
		h.peaked(id)
	}
	return true
}

func (h hooks) Leaving(s *Site) {
	if h.leaving != nil {
		h.leaving(s)
	}
}

// placeHooks are hooks that pass on Extents to places.
type placeHooks struct {
	hooks
	places
}
