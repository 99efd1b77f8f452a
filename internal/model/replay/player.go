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

// A Player plays a recording to one moment after another. To a later moment it plays the
// records in between, to an earlier one all records from the beginning. It is for one
// goroutine.
type Player struct {
	path   string
	reader *record.Reader
	player *player
	at     time.Duration // where it is
	ended  bool          // all was read

	// ahead are the records after at that were read already: stacks and names of earlier
	// events come after it.
	ahead []record.Record
}

// maxAhead bounds the records that are read ahead. With more, stacks and names that come
// later are not known yet.
const maxAhead = 1 << 20

// NewPlayer returns one of the recording at path, at no moment yet.
func NewPlayer(path string) *Player { return &Player{path: path} }

// To plays to so long after the trace began, or to the recording's end if that is before,
// and returns the state as it is then, as Play does. The gaps of the recording itself are
// reported at its end only. The state is valid until the next call. Errors are as
// Play's, but for ErrNoMoment.
func (x *Player) To(at time.Duration) (*state.State, error) {
	if x.player == nil || at < x.at {
		if err := x.begin(); err != nil {
			return nil, err
		}
	}
	x.at = at
	p := x.player
	p.opts.At, p.over, p.stacksOver = at, false, false
	ahead := x.ahead
	x.ahead = nil
	for _, r := range ahead {
		x.add(r)
	}
	for !x.ended && !p.stacksOver && len(x.ahead) < maxAhead {
		r, err := x.reader.Next()
		if errors.Is(err, io.EOF) {
			x.ended = true
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", x.path, err)
		}
		x.add(r)
	}
	if p.trace == nil {
		return nil, fmt.Errorf("read %s: %w", x.path, x.reader.MissingTrace())
	}
	if x.ended && !p.over {
		p.flush(false, true)
		x.passed()
		p.addReaderLoss(x.reader)
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

// add plays the next record, or remembers it if it is beyond the moment.
func (x *Player) add(r record.Record) {
	p := x.player
	if !p.over {
		if p.add(r); !p.over {
			return
		}
		x.passed()
		if m, ok := r.(*record.Moment); ok { // other records are in the batch
			x.ahead = append(x.ahead, m)
		}
		return
	}
	switch r := r.(type) {
	case *event.Event:
		e := *r // it is used again by its source
		x.ahead = append(x.ahead, &e)
		return
	case *record.Trace:
	default:
		p.add(r)
	}
	x.ahead = append(x.ahead, r)
}

// passed remembers what came after the moment, of the batch in which it was passed.
func (x *Player) passed() {
	x.ahead = append(x.ahead, x.player.left...)
	x.player.left = nil
}

// Close closes the recording.
func (x *Player) Close() error {
	if x.reader == nil {
		return nil
	}
	return x.reader.Close()
}
