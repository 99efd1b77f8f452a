package record

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A WriterOptions says how a recording is written.
type WriterOptions struct {
	// MaxBytes bounds the file, 0 for no bound. The oldest quarter is dropped
	// when a new one begins. At least MinBytes.
	MaxBytes int64
	// Keyframe yields what rebuilds the state as it was before the record that
	// Append was called with: the Trace, processes, stacks and names of what is
	// live, and its events. Append calls it, with its caller's locks held, when
	// the oldest records are dropped, and, in a file without a bound, after
	// records were lost and the disk is well again. It must not call the Writer.
	// It is needed with MaxBytes and with Since. The encoded keyframe stays in memory until
	// it was written: at most half of a quarter of MaxBytes, and 64 MiB.
	Keyframe func(yield func(Record))
	// Since, if not 0, says that the recording begins amid a trace, with a keyframe: the
	// latest time of a record by then, in nanoseconds of CLOCK_MONOTONIC.
	Since uint64
	// Unbounded keeps blocks for which the disk is too slow in memory instead of dropping them: for
	// files of a Format, and for tests, which record faster than any program allocates.
	Unbounded bool
}

// MinBytes is the least that a file can be bounded to.
const MinBytes = 16 << 20

const (
	regions = 4
	// queueDepth blocks of 256 KiB wait at most: some seconds of many events.
	queueDepth = 64
	// flushInterval bounds, with the duration of a write, the loss when the process is
	// killed.
	flushInterval = time.Second / 2
	// maxKeyframe bounds a keyframe, in bytes, beside half a region.
	maxKeyframe = 64 << 20
)

// The ways in which a Writer loses something.
var writerCauses = []loss.Cause{
	lossNotRecorded:   loss.Of("records_not_recorded", "records missing in the recording because the disk was full, too slow or failed"),
	lossUnfit:         loss.Of("records_unfit", "records missing in the recording because they are too large for it"),
	lossTextCut:       loss.Of("recorded_texts_cut", "texts of more than 64 KiB, of which the recording has only the beginning"),
	lossKeyframeLarge: loss.Of("keyframes_too_large", "quarters of the recording that do not begin with a copy of what was live, because it is too large for --record-max"),
}

const (
	lossNotRecorded = iota
	lossUnfit
	lossTextCut
	lossKeyframeLarge
)

// A Writer records to a file. It never waits for the disk: blocks for which the disk is too
// slow are dropped and counted.
//
// Blocks go to the file when they are full, and twice a second. Nothing is synced: a killed
// tracer loses the records of the last half second, and a machine that stops loses the
// blocks that its kernel had not written.
type Writer struct {
	opts  WriterOptions
	sink  *sink
	queue *queue
	loss  *loss.Set
	done  chan struct{} // the sink has ended
	stop  chan struct{} // ends the flushing
	ended chan struct{} // it has ended

	mu                sync.Mutex // over all below
	closed            bool
	enc               Fields
	block             *block // being filled
	records           uint32 // in it
	limit             int    // bytes of its payload at most: none when a keyframe is due
	lost              uint64 // records dropped since the last block that was handed over
	time              uint64 // the latest that was recorded
	places            placeSet
	resets            int // of places
	ring              ring
	repair            healing
	beginWithKeyframe bool      // the recording has not begun: it does with a keyframe
	keyframeDue       bool      // a keyframe comes next
	collecting        *keyframe // being recorded, nil for none
}

// Create begins a recording in a file, which is empty, and which the Writer closes. With an
// error the file stays open.
func Create(f *os.File, opts WriterOptions) (*Writer, error) {
	if err := opts.check(); err != nil {
		return nil, fmt.Errorf("record to %s: %w", f.Name(), err)
	}
	l := layout{salt: rand.Uint32()}
	if opts.MaxBytes > 0 {
		l.regions, l.regionSize = regions, (opts.MaxBytes-fileHeaderSize)/regions
	}
	w, err := newWriter(f, opts, l, maxPayload, queueDepth)
	if err != nil {
		return nil, fmt.Errorf("record to %s: %w", f.Name(), err)
	}
	return w, nil
}

func (o *WriterOptions) check() error {
	switch {
	case o.MaxBytes != 0 && o.MaxBytes < MinBytes:
		return fmt.Errorf("a bound of %d bytes is too small, %d are the least", o.MaxBytes, MinBytes)
	case (o.MaxBytes != 0 || o.Since != 0) && o.Keyframe == nil:
		return errors.New("a bound, and a beginning amid a trace, need a keyframe")
	}
	return nil
}

func newWriter(f file, opts WriterOptions, l layout, blockSize, depth int) (*Writer, error) {
	if _, err := f.WriteAt(l.header(), 0); err != nil {
		return nil, err
	}
	w := &Writer{
		opts:  opts,
		loss:  loss.New(writerCauses),
		queue: newQueue(depth, blockSize),
		done:  make(chan struct{}),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
		ring:  newRing(l, blockSize),
	}
	w.sink = &sink{file: f, layout: l, offset: l.start(0), loss: w.loss, packer: newPacker()}
	w.time = opts.Since
	if w.beginWithKeyframe = opts.Since != 0; w.beginWithKeyframe {
		w.sink.region = max(l.regions-1, 0) // a keyframe begins the next one
	}
	w.begin()
	go func() {
		w.sink.run(w.queue)
		close(w.done)
	}()
	go w.flushing()
	return w, nil
}

// Append records r, before r is applied to the state that Keyframe rebuilds. It
// is safe for concurrent use.
func (w *Writer) Append(r Record) {
	w.mu.Lock()
	if w.closed {
		w.loss.Add(lossNotRecorded, 1)
	} else {
		w.append(r)
	}
	w.mu.Unlock()
}

// Loss returns a counter for each way to lose something.
func (w *Writer) Loss() []loss.Counter { return w.loss.Counters() }

// Err returns why the last block was not written, nil if it was.
func (w *Writer) Err() error {
	if err := w.sink.err.Load(); err != nil {
		return *err
	}
	return nil
}

// Close waits until all is written and closes the file. It returns why the last
// block was not written.
func (w *Writer) Close() error {
	w.mu.Lock()
	if w.closed {
		w.mu.Unlock()
		return fs.ErrClosed
	}
	w.closed = true
	w.block.Flags |= flagEnd
	w.put(w.finish(), true)
	w.mu.Unlock()

	close(w.stop)
	<-w.ended
	w.queue.close()
	<-w.done
	return errors.Join(w.Err(), w.sink.Close())
}

// flushing hands over records that wait in a block that is not full, at each interval.
func (w *Writer) flushing() {
	defer close(w.ended)
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-tick.C:
		}
		w.mu.Lock()
		if !w.closed && len(w.enc.buf) > 0 && !w.queue.full() {
			w.flushBlock()
		}
		w.mu.Unlock()
	}
}
