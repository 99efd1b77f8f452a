package replay

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/event"
	"github.com/gpumemtrace/gpumemtrace/internal/model/record"
	"github.com/gpumemtrace/gpumemtrace/internal/model/state"
)

// A Player plays a recording to one moment after another. On to a later one it plays what
// lies between; back to an earlier one, all from the beginning. It is for one goroutine.
type Player struct {
	path   string
	reader *record.Reader
	player *player
	at     time.Duration // where it is
	ended  bool          // all was read

	// held are the records after at that were read already: stacks and names of what
	// is before come after it.
	held []record.Record
}

// maxHeld bounds the records that are read ahead. With more, stacks and names that come
// later are not known yet.
const maxHeld = 1 << 20

// NewPlayer returns one of the recording at path, at no moment yet.
func NewPlayer(path string) *Player { return &Player{path: path} }

// To plays to so long after the trace began, or to the recording's end if that is before,
// and returns the state as it is then, as Play does but for what the recording itself
// lacks, which is told at its end. The state is good until the next call. Errors are as
// Play's, but for ErrNoMoment.
func (x *Player) To(at time.Duration) (*state.State, error) {
	if x.player == nil || at < x.at {
		if err := x.begin(); err != nil {
			return nil, err
		}
	}
	x.at = at
	p := x.player
	p.opts.At, p.over, p.late = at, false, false
	held := x.held
	x.held = nil
	for _, r := range held {
		x.take(r)
	}
	for !x.ended && !p.late && len(x.held) < maxHeld {
		r, err := x.reader.Next()
		if errors.Is(err, io.EOF) {
			x.ended = true
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", x.path, err)
		}
		x.take(r)
	}
	if p.trace == nil {
		return nil, fmt.Errorf("read %s: %w", x.path, x.reader.Untold())
	}
	if x.ended && !p.over {
		p.flush(true)
		p.tell(x.reader)
	}
	return p.state, nil
}

// begin begins at the recording's beginning.
func (x *Player) begin() error {
	if err := x.Close(); err != nil {
		return err
	}
	r, err := record.Open(x.path)
	if err != nil {
		return err
	}
	*x = Player{path: x.path, reader: r, player: &player{state: state.New()}}
	return nil
}

// take takes the next record, and holds it if it is beyond the moment.
func (x *Player) take(r record.Record) {
	p := x.player
	m, isMoment := r.(*record.Moment)
	switch {
	case !p.over && isMoment && p.beyond(m.Time):
		x.held = append(append(x.held, p.batch...), r) // p gives its batch up
		p.take(r)
		return
	case !p.over:
		p.take(r)
		return
	}
	switch r := r.(type) {
	case *event.Event:
		e := *r // it is used again by its source
		x.held = append(x.held, &e)
		return
	case *record.Trace:
	default:
		p.take(r)
	}
	x.held = append(x.held, r)
}

// Close closes the recording.
func (x *Player) Close() error {
	if x.reader == nil {
		return nil
	}
	return x.reader.Close()
}
