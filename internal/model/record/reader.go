package record

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// The ways in which a recording may lack something.
var readerCauses = []loss.Cause{
	readNotRecorded: writerCauses[lossNotRecorded],
	readDamaged:     loss.Of("recording_damaged", "stretches of the recording that are damaged"),
	readPlaces:      loss.Of("recorded_places_missing", "frames of recorded stacks whose names were lost with other records"),
	readShortened:   loss.Of("recorded_stacks_shortened", "recorded stacks without their outermost frames, and names of recorded frames, because there is too much text for the size of the recording"),
	readCutShort:    loss.Of("recording_cut_short", "the recording was not closed: its end may be missing"),
}

const (
	readNotRecorded = iota
	readDamaged
	readPlaces
	readShortened
	readCutShort
)

// A Reader reads what a Writer wrote, whole or not. It is for one goroutine.
//
// It trusts nothing: a file may be damaged, or made to do harm. The memory that it
// allocates is bounded by the file's size.
type Reader struct {
	closer  io.Closer
	scanner *scanner
	shared  *sharedObjects
	dec     *Fields
	packed  *unpacker
	err     error

	block   blockHeader // being read
	inside  bool        // a block is being read
	records uint32      // read from it
	show    bool        // its records are returned

	foreign bool // of a Format

	begun bool
	ended bool // a closed recording's last block was read
	// uncertain: records are missing before what Next returned last. It is false
	// again after the next keyframe.
	uncertain bool
	start     uint64 // the first time
	last      uint64 // the latest time of the blocks before
	lost      uint64
	damaged   uint64 // blocks that make no sense
	gaps      int
	firstGap  uint64 // its time
}

// Open opens a recording, or a file of a Format as one. Errors are those of userfile.Open, or wrap ErrNotRecording,
// ErrVersion, ErrMalformed or ErrCutShort.
func Open(path string) (*Reader, error) {
	f, info, err := userfile.Open(path)
	if err != nil {
		return nil, err
	}
	r, err := OpenFile(f, info)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	r.closer = f
	return r, nil
}

// NewReader reads a recording of size bytes. It does not read bytes that are appended
// later.
func NewReader(file io.ReaderAt, size int64) (*Reader, error) {
	s, err := newScanner(file, size)
	if err != nil {
		return nil, err
	}
	k := newKnown(size)
	return &Reader{scanner: s, shared: k, dec: &Fields{reading: true, shared: k}, packed: newUnpacker()}, nil
}

// Close closes the file if Open opened it.
func (r *Reader) Close() error {
	if r.closer == nil {
		return nil
	}
	return r.closer.Close()
}

// Next returns the next record, and io.EOF after the last. An *event.Event is valid until
// the next call, anything else for good. One place or mapping of the recorded trace is one
// pointer; Next may set HasLines of a mapping that it returned before. It does not apply a
// Name.
//
// Damage and gaps are no errors: Next goes on after them, and Loss and Notes report them.
// The keyframe after a gap is returned, so that the state is whole again. Other keyframes
// are left out, but for one that the recording begins with. An error is one of reading the
// file, and comes again.
func (r *Reader) Next() (Record, error) {
	for r.err == nil {
		if !r.inside {
			r.err = r.enter()
			continue
		}
		rec := r.dec.next()
		if rec != nil && r.records == r.block.Records {
			r.dec.fail()
		}
		if rec == nil || r.dec.bad {
			r.leave()
			continue
		}
		r.records++
		if r.show {
			return rec, nil
		}
	}
	return nil, r.err
}

// enter begins the next block.
func (r *Reader) enter() error {
	h, packed, missing, err := r.scanner.next()
	if err != nil {
		return err
	}
	keyframe, cut, bare := h.Flags&flagKeyframe != 0, h.Flags&flagCut != 0, h.Flags&flagBare != 0
	first := !r.begun
	if first {
		r.begun, r.start = true, h.First
		// A ring begins where its oldest region does.
		missing = h.Sequence > 0 && (!cut || bare)
		if h.Sequence > 0 && !missing {
			h.Lost = 0
		}
	}
	if missing || h.Lost > 0 {
		r.gap(h.Lost)
	}
	switch {
	case cut && bare:
		r.show = first
	case cut:
		r.show = first || r.uncertain
		r.uncertain = r.uncertain && !r.show
	case keyframe:
		// Without its Cut it would look like events that happened.
		r.show = r.show && r.block.Flags&flagKeyframe != 0
	default:
		r.show = true
	}
	if cut {
		r.shared.cut()
	}
	r.block, r.inside, r.records = h, true, 0
	r.ended = h.Flags&flagEnd != 0
	payload, sound := r.packed.unpack(&h, packed)
	r.dec.begin(payload)
	r.dec.bad = !sound
	return nil
}

// leave ends a block.
func (r *Reader) leave() {
	r.inside = false
	if r.dec.bad || r.records != r.block.Records {
		r.damaged++
		r.gap(0)
	}
	r.last = max(r.last, r.block.Last)
}

// gap notes that n records are missing, 0 if their number is not known.
func (r *Reader) gap(n uint64) {
	if r.gaps == 0 {
		r.firstGap = r.last
	}
	r.gaps++
	r.lost += n
	r.uncertain = true
}

// Foreign reports whether another program made the file: see Format.
func (r *Reader) Foreign() bool { return r.foreign }

// Progress returns which part of the file was read, from 0 to 1.
func (r *Reader) Progress() float64 { return r.scanner.progress() }

// Truncated tells, once Next has returned io.EOF, whether the recording was not
// closed: the tracer was killed, or is still writing.
func (r *Reader) Truncated() bool { return errors.Is(r.err, io.EOF) && !r.ended }

// MissingTrace is the error of a recording that was read to its end and has no Trace, without
// which nothing of it can be shown: ErrMalformed where something in it is damaged, else
// ErrCutShort.
func (r *Reader) MissingTrace() error {
	if r.damaged+r.scanner.damaged > 0 {
		return fmt.Errorf("%w: it does not say what was traced", ErrMalformed)
	}
	return fmt.Errorf("%w: its disk was full, or the tracer was killed, before it said what was traced, and nothing can be shown of it", ErrCutShort)
}

// Loss returns a counter for each way in which the recording lacks something, as
// far as it was read.
func (r *Reader) Loss() []loss.Counter {
	values := [...]uint64{
		readNotRecorded: r.lost,
		readDamaged:     r.damaged + r.scanner.damaged,
		readPlaces:      r.shared.missing,
		readShortened:   r.shared.shortened,
		readCutShort:    0,
	}
	if r.Truncated() {
		values[readCutShort] = 1
	}
	out := make([]loss.Counter, len(readerCauses))
	for i, c := range readerCauses {
		out[i] = c.Counter(values[i])
	}
	return out
}

// Notes returns sentences on what the recording lacks, as far as it was read.
func (r *Reader) Notes() []string {
	var notes []string
	if r.gaps > 0 {
		gaps := "a gap"
		if r.gaps > 1 {
			gaps = fmt.Sprintf("%d gaps, the first", r.gaps)
		}
		after := time.Duration(r.firstGap - min(r.start, r.firstGap)).Round(time.Millisecond)
		notes = append(notes, fmt.Sprintf("The recording has %s %v after its start: what is shown as live may be wrong from a gap to the next keyframe.", gaps, after))
	}
	if r.Truncated() {
		notes = append(notes, "The recording was not closed: it may end before the trace did.")
	}
	return notes
}
