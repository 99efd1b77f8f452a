package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Shapes are stacks as outputs show them. A caller that makes many snapshots passes the
// same Shapes in each Want: a Snapshot spends nearly all of its time on stacks, and those
// whose names are final do not change. They are for one goroutine.
type Shapes struct {
	native  stacks.Native
	round   uint64 // of Snapshots
	shown   int    // stacks of the latest
	located map[shapeKey]*shape
	leaves  map[string]*snapshot.Location
	same    map[*snapshot.Location]*snapshot.Location
	equal   map[locationKey][]*snapshot.Location
}

// maxShapes bounds the stacks that are remembered from one Snapshot to the next. Beyond it
// all are dropped, and so they are if most of many were not in the latest Snapshot: old
// stacks come back far less often than new ones come.
const (
	maxShapes      = 1 << 18
	manyShapes     = 4096
	shapesPerShown = 4
)

// NewShapes returns those of no stacks.
func NewShapes() *Shapes {
	return &Shapes{located: map[shapeKey]*shape{}, leaves: map[string]*snapshot.Location{},
		same: map[*snapshot.Location]*snapshot.Location{}, equal: map[locationKey][]*snapshot.Location{}}
}

// prepare drops the stacks that may look different in the next Snapshot.
func (s *Shapes) prepare(native stacks.Native) {
	if native != s.native || len(s.located) > maxShapes || len(s.same) > maxShapes || len(s.located) > manyShapes+shapesPerShown*s.shown {
		*s = *NewShapes()
		s.native = native
	}
	s.round++
	s.shown = 0
	for key, x := range s.located {
		if !x.final {
			delete(s.located, key)
		}
	}
}

// A shape is how a stack is shown.
type shape struct {
	frames   []*snapshot.Location // folded
	owner    string
	operator string
	module   string
	use      stacks.Use // of a tensor's

	places   []*record.Place        // that it was made of
	mappings []*snapshot.Mapping    // that its frames are in
	final    bool                   // it will not have other names
	round    uint64                 // when it was shown last
	called   [][]*snapshot.Location // under each function that was called last
}

// under returns the frames with one before them.
func (x *shape) under(leaf *snapshot.Location) []*snapshot.Location {
	for _, called := range x.called {
		if called[0] == leaf {
			return called
		}
	}
	x.called = append(x.called, append([]*snapshot.Location{leaf}, x.frames...))
	return x.called[len(x.called)-1]
}

// A shapeKey is a stack. One that begins was captured at the beginning of its first function.
type shapeKey struct {
	stack  uint64
	begins bool
}

// madeOf reports whether x was made of frames: a stack that was dropped and came again has
// others.
func (x *shape) madeOf(frames []*record.Place) bool {
	return len(x.places) == len(frames) && (len(frames) == 0 || &x.places[0] == &frames[0])
}

// shape returns the shape of a stack at which memory of a kind was allocated. The stack of a
// tensor is captured at the beginning of the function by which PyTorch reports tensors: its
// first frame, which allocated nothing. A stack whose native frames are not known begins with one of
// an interpreter's, which has no address.
func (b *builder) shape(id uint64, kind event.Kind, frames []*record.Place) *shape {
	key := shapeKey{id, kind == event.KindTensor}
	out := b.located[key]
	if out == nil || !out.madeOf(frames) {
		out = b.makeShape(key, frames)
		b.located[key] = out
	}
	if out.round != b.round {
		out.round = b.round
		b.shown++
	}
	for _, m := range out.mappings {
		if !b.mapped[m.Key()] {
			b.mapped[m.Key()] = true
			b.mappings = append(b.mappings, m)
		}
	}
	return out
}

// noFrames stands for the frames of a stack that are still to come, or were lost.
var noFrames = []*snapshot.Location{synthetic(snapshot.NotNamed)}

// makeShape makes the shape of a stack.
func (s *Shapes) makeShape(key shapeKey, frames []*record.Place) *shape {
	out := &shape{places: frames, final: true}
	if key.begins && len(frames) > 0 && frames[0].Address != 0 {
		frames = frames[1:]
	}
	located := make([]*snapshot.Location, len(frames))
	for i, place := range frames {
		out.final = out.final && place.Final() // before its name is read
		l := s.unique(place.Location())
		if l.Mapping != nil && !slices.Contains(out.mappings, l.Mapping) {
			out.mappings = append(out.mappings, l.Mapping)
		}
		located[i] = l
	}
	out.frames = stacks.Fold(s.native, located)
	if len(out.places) == 0 && key.stack != 0 {
		located = noFrames
	}
	out.owner, out.operator, out.module = stacks.Owner(located), stacks.Operator(located), stacks.Module(located)
	if key.begins {
		out.use = stacks.UseOf(located)
	}
	return out
}

// unique returns the location that stands for all that are equal to l: two places may
// be at one address, as where a stack returned to and as where one began.
func (s *Shapes) unique(l *snapshot.Location) *snapshot.Location {
	if same := s.same[l]; same != nil {
		return same
	}
	key := locationKey{address: l.Address, lines: len(l.Lines)}
	if l.Mapping != nil {
		key.mapping = l.Mapping.Key()
	}
	if len(l.Lines) > 0 {
		key.line = l.Lines[0]
	}
	for _, other := range s.equal[key] {
		if slices.Equal(other.Lines, l.Lines) {
			s.same[l] = other
			return other
		}
	}
	s.equal[key], s.same[l] = append(s.equal[key], l), l
	return l
}

// A locationKey has the fields in which most locations differ.
type locationKey struct {
	address uint64
	mapping snapshot.Mapping // by Key
	line    snapshot.Line
	lines   int
}

// leaf returns the frame of a function that has returned.
func (s *Shapes) leaf(name string) *snapshot.Location {
	if s.leaves[name] == nil {
		s.leaves[name] = synthetic(name)
	}
	return s.leaves[name]
}
