package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

// A batch is one request.
type batch struct {
	profiles int
	made     time.Time
	body     []byte
}

// A queue has the requests that wait for one target, the oldest first, in a folder or in
// memory. It is safe for concurrent use, by one who takes.
type queue struct {
	mu      sync.Mutex
	root    *os.Root // nil: in memory
	max     int64    // bytes
	size    int64
	next    uint64 // sequence number
	entries []*entry
	ended   bool
	taken   uint64        // sequence number of the entry that is being sent, 0 for none
	more    chan struct{} // has one if there may be something new
	loss    *loss.Set
}

// An entry is a batch that waits.
type entry struct {
	sequence uint64
	size     int64
	profiles int    // 1 where that is not known yet
	batch    *batch // nil: in a file
}

// maxEntries bounds the files of a folder.
const maxEntries = 1 << 14

// openQueue returns the queue in a folder, which it makes if it is not there, with what
// an earlier process left in it. "" is a queue in memory.
func openQueue(dir string, maxBytes int64, set *loss.Set) (*queue, error) {
	q := &queue{max: maxBytes, next: 1, loss: set, more: make(chan struct{}, 1)}
	if dir == "" {
		return q, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	root, err := ownFolder(dir)
	if err != nil {
		return nil, err
	}
	q.root = root
	if err := q.find(); err != nil {
		root.Close()
		return nil, fmt.Errorf("queue %s: %w", dir, err)
	}
	return q, nil
}

// find takes up what is in the folder. It reads it when it is sent.
func (q *queue) find() error {
	dir, err := q.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if strings.HasSuffix(name, partial) {
			_ = q.root.Remove(name) // its process was killed while it wrote
		}
		sequence, err := strconv.ParseUint(strings.TrimSuffix(name, suffix), 16, 64)
		if err != nil || name != fileName(sequence) || sequence == 0 || sequence > 1<<62 {
			continue
		}
		info, err := q.root.Lstat(name)
		if err != nil {
			continue
		}
		q.entries = append(q.entries, &entry{sequence: sequence, size: info.Size(), profiles: 1})
		q.size += info.Size()
		q.next = max(q.next, sequence+1)
	}
	slices.SortFunc(q.entries, func(a, b *entry) int { return cmp.Compare(a.sequence, b.sequence) })
	q.mu.Lock()
	defer q.mu.Unlock()
	q.room(0)
	q.wake()
	return nil
}

// put adds a batch. If it cannot be written, it waits in memory.
func (q *queue) put(b *batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	e := &entry{sequence: q.next, profiles: b.profiles, size: fileSize(b)}
	if !q.room(e.size) {
		q.loss.Add(lossFull, uint64(b.profiles))
		return
	}
	q.next++
	if q.root == nil {
		e.batch = b
	} else if err := writeFile(q.root, e.sequence, b); err != nil {
		q.loss.Add(lossMemory, uint64(b.profiles))
		e.batch = b
	}
	q.entries = append(q.entries, e)
	q.size += e.size
	q.wake()
}

// room drops the oldest until there is room for so many bytes, but not what is being
// sent. It tells whether there is.
func (q *queue) room(size int64) bool {
	if size > q.max {
		return false
	}
	for i := 0; q.size+size > q.max || len(q.entries) >= maxEntries; {
		if i == len(q.entries) {
			return false
		}
		if q.entries[i].sequence == q.taken {
			i++
			continue
		}
		q.loss.Add(lossFull, uint64(q.profiles(q.entries[i])))
		q.drop(i)
	}
	return true
}

// profiles returns how many an entry has.
func (q *queue) profiles(e *entry) int {
	if e.batch == nil && e.profiles <= 1 {
		if b, err := readFile(q.root, e.sequence); err == nil {
			return b.profiles
		}
	}
	return e.profiles
}

func (q *queue) drop(i int) {
	e := q.entries[i]
	if e.batch == nil {
		_ = q.root.Remove(fileName(e.sequence))
	}
	q.size -= e.size
	q.entries = slices.Delete(q.entries, i, i+1)
}

func (q *queue) wake() {
	select {
	case q.more <- struct{}{}:
	default:
	}
}

// take waits for the oldest batch, which stays until done. It returns nil when ctx ends,
// and when the queue has ended and is empty.
func (q *queue) take(ctx context.Context) *batch {
	for ctx.Err() == nil {
		b, ended := q.first()
		if b != nil || ended {
			return b
		}
		select {
		case <-ctx.Done():
		case <-q.more:
		case <-time.After(time.Minute): // a file could not be opened for want of something
		}
	}
	return nil
}

func (q *queue) first() (b *batch, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.entries) > 0 {
		e := q.entries[0]
		b := e.batch
		if b == nil {
			var err error
			b, err = readFile(q.root, e.sequence)
			if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) || errors.Is(err, unix.ENOMEM) {
				return nil, q.ended
			}
			if err != nil {
				q.loss.Add(lossDamaged, 1)
				q.drop(0)
				continue
			}
		}
		e.profiles, q.taken = b.profiles, e.sequence
		return b, false
	}
	return nil, q.ended
}

// done removes the batch that was taken, for good: it is not there after a crash.
func (q *queue) done() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, e := range q.entries {
		if e.sequence == q.taken {
			q.drop(i)
			if e.batch == nil {
				syncFolder(q.root)
			}
			break
		}
	}
	q.taken = 0
}

// end says that nothing more comes.
func (q *queue) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.ended = true
	q.wake()
}

// close counts what is lost with this process. Files stay.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.entries {
		if e.batch != nil {
			q.loss.Add(lossEnded, uint64(e.profiles))
		}
	}
	if q.root != nil {
		q.root.Close()
	}
}

// waiting returns how many profiles wait, and their requests' bytes.
func (q *queue) waiting() (profiles int, bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, e := range q.entries {
		profiles += e.profiles
	}
	return profiles, q.size
}
