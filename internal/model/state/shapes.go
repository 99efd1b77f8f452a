package state

import (
	"slices"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
	"github.com/gpumemtrace/gpumemtrace/internal/model/stacks"
)

// Shapes are how stacks are shown. Whoever looks again and again gives the same ones in
// each Want: nearly all of the time of a Snapshot is spent on stacks, and those whose
// names are final look as they did before. They are for one goroutine.
type Shapes struct {
	native  stacks.Native
	round   uint64 // of Snapshots
	shown   int    // stacks of the latest
	located map[shaped]*shape
	leaves  map[string]*snapshot.Location
	same    map[*snapshot.Location]*snapshot.Location
	equal   map[place][]*snapshot.Location
}

// maxShapes bounds the stacks that are kept from one Snapshot to the next; beyond,
// they are begun afresh. So they are where most of many were not in the latest Snapshot:
// it is by far more seldom that a stack comes back than that a new one comes.
const (
	maxShapes    = 1 << 18
	manyShapes   = 4096
	keptForShown = 4
)

// NewShapes returns those of no stacks.
func NewShapes() *Shapes {
	return &Shapes{located: map[shaped]*shape{}, leaves: map[string]*snapshot.Location{},
		same: map[*snapshot.Location]*snapshot.Location{}, equal: map[place][]*snapshot.Location{}}
}

// begin forgets what may look otherwise in the next Snapshot.
func (s *Shapes) begin(native stacks.Native) {
	if native != s.native || len(s.located) > maxShapes || len(s.same) > maxShapes || len(s.located) > manyShapes+keptForShown*s.shown {
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

	of       []*record.Place        // what it was made of
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

// A shaped is a stack that was taken where a function of its own begins, or was not.
type shaped struct {
	stack  uint64
	begins bool
}

// made tells whether x was made of frames: a stack that was dropped and told again has
// others.
func (x *shape) made(frames []*record.Place) bool {
	return len(x.of) == len(frames) && (len(frames) == 0 || &x.of[0] == &frames[0])
}

// shape returns how a stack is shown at which memory of a kind was asked for. That of a
// tensor is taken where the function begins that PyTorch reports it by: its first frame,
// which asked for nothing. A stack whose native frames are not known begins with one of
// an interpreter's, which has no address.
func (b *builder) shape(id uint64, kind event.Kind, frames []*record.Place) *shape {
	key := shaped{id, kind == event.KindTensor}
	out := b.located[key]
	if out == nil || !out.made(frames) {
		out = b.look(key, frames)
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

// look makes the shape of a stack.
func (s *Shapes) look(key shaped, frames []*record.Place) *shape {
	out := &shape{of: frames, final: true}
	if key.begins && len(frames) > 0 && frames[0].Address != 0 {
		frames = frames[1:]
	}
	located := make([]*snapshot.Location, len(frames))
	for i, place := range frames {
		out.final = out.final && place.Final() // before its name is read
		l := s.one(place.Location())
		if l.Mapping != nil && !slices.Contains(out.mappings, l.Mapping) {
			out.mappings = append(out.mappings, l.Mapping)
		}
		located[i] = l
	}
	out.frames = stacks.Fold(s.native, located)
	out.owner, out.operator, out.module = stacks.Owner(located), stacks.Operator(located), stacks.Module(located)
	if key.begins {
		out.use = stacks.UseOf(located)
	}
	return out
}

// one returns the location that stands for all that are equal to l: two places may
// be at one address, as where a stack returned to and as where one began.
func (s *Shapes) one(l *snapshot.Location) *snapshot.Location {
	if same := s.same[l]; same != nil {
		return same
	}
	key := place{address: l.Address, lines: len(l.Lines)}
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

// A place is what most locations differ in.
type place struct {
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
