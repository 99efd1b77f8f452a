package record

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

// SharedObjects are remembered by a reader from block to block, so that one object of the
// recorded trace is one pointer again.
type sharedObjects struct {
	places  map[uint64]*knownPlace
	highest uint64 // id of a place
	missing uint64 // references to places that are defined nowhere
	// before are places from before the last Cut. They are themselves again
	// when they are defined again.
	before map[uint64]*knownPlace

	mappings map[snapshot.Mapping]*snapshot.Mapping
	texts    map[string]string

	lost *knownPlace // stands for frames whose definitions were lost

	room      int64  // bytes that frames of stacks may still count for; see someText
	shortened uint64 // stacks and names for which there was no room
}

// A knownPlace is a place, and how often stacks have it.
type knownPlace struct {
	Place
	frames int64 // of stacks
	bytes  int64 // that each of them counts for
}

// newKnown is for a file of size bytes.
func newKnown(size int64) *sharedObjects {
	return &sharedObjects{
		lost:     &knownPlace{bytes: frameBytes},
		room:     someText + textRatio*size,
		places:   map[uint64]*knownPlace{},
		mappings: map[snapshot.Mapping]*snapshot.Mapping{},
		texts:    map[string]string{},
	}
}

// Limits of the objects that are shared. Beyond a limit sharing starts over.
const (
	maxTexts    = 1 << 16
	maxMappings = 1 << 20
)

// text returns b as a string, the one that was returned for it before.
func (k *sharedObjects) text(b []byte) string {
	if s, ok := k.texts[string(b)]; ok {
		return s
	}
	if len(k.texts) >= maxTexts {
		clear(k.texts)
	}
	s := string(b)
	k.texts[s] = s
	return s
}

// mapping returns the one pointer for a mapping. Two of one file at one address
// are the same, whatever was known of its symbols when each was recorded.
func (k *sharedObjects) mapping(m snapshot.Mapping) *snapshot.Mapping {
	key := m
	key.HasLines = false
	if shared := k.mappings[key]; shared != nil {
		shared.HasLines = shared.HasLines || m.HasLines
		return shared
	}
	if len(k.mappings) >= maxMappings {
		clear(k.mappings)
	}
	k.mappings[key] = &m
	return &m
}

// cut says that places come up again only after they were defined again.
func (k *sharedObjects) cut() {
	k.before, k.places = k.places, map[uint64]*knownPlace{}
}

// define makes a place known. One that was defined before stays the same, and
// retains a name that is as good.
func (k *sharedObjects) define(id, address uint64, naming uint32, l *snapshot.Location) {
	p := k.places[id]
	if p == nil {
		p = k.before[id]
	}
	if p == nil || p.Address != address {
		p = &knownPlace{Place: Place{ID: id, Address: address}, bytes: frameBytes}
	}
	k.places[id] = p
	if id > k.highest {
		k.highest = id
	}
	if len(k.places) > placeWindow+placeWindow/8 {
		k.forget()
	}
	if naming == unnamed || !k.name(p, l) {
		return
	}
	if old := p.location.Load(); old == nil || !sameName(old, l) {
		p.location.Store(l)
	}
	p.naming.Store(naming)
}

// forget drops places that a writer would define again.
func (k *sharedObjects) forget() {
	for id := range k.places {
		if k.highest-id >= placeWindow {
			delete(k.places, id)
		}
	}
}

// place returns the place with an id, nil if its definition was lost.
func (k *sharedObjects) place(id uint64) *knownPlace {
	if p := k.places[id]; p != nil {
		return p
	}
	k.missing++
	return nil
}

// frame returns the place with an id for a frame of a stack, nil if there is no room for it.
func (k *sharedObjects) frame(id uint64) *Place {
	p := k.place(id)
	if p == nil {
		p = k.lost
	}
	if p.bytes > k.room {
		return nil
	}
	k.room -= p.bytes
	p.frames++
	return &p.Place
}

// name makes room for a place's name in all stacks that have the place. It is false if there is
// none.
func (k *sharedObjects) name(p *knownPlace, l *snapshot.Location) bool {
	bytes := int64(frameBytes)
	for i := range l.Lines {
		x := &l.Lines[i]
		bytes += int64(lineBytes + len(x.Function) + len(x.System) + len(x.File) + len(x.Reason))
	}
	more := max(bytes-p.bytes, 0)
	if p.frames > 0 && more > k.room/p.frames {
		k.shortened++
		return false
	}
	k.room -= more * p.frames
	p.bytes = bytes
	return true
}

func sameName(a, b *snapshot.Location) bool {
	return a.Address == b.Address && a.Mapping == b.Mapping && slices.Equal(a.Lines, b.Lines)
}
