// Package reload reads values from files, and reads them again when the files change.
package reload

import (
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
)

// A Value is what files contain. It is safe for concurrent use.
type Value[T any] struct {
	every time.Duration
	read  func() (T, []string, error)
	warn  func(string)

	mu     sync.Mutex
	value  T
	looked time.Time
	paths  []string // that the latest read returned
	files  []stamp  // taken just before the latest read, of the paths that the read before it returned
	warned string   // the latest read's error, "" if it succeeded
}

// A stamp is different after a file changed, as far as its directory shows that.
type stamp struct {
	time  time.Time
	size  int64
	inode uint64
}

// Load reads a value with read, which also returns the paths of the files that the value comes
// from, even with an error. Later Get looks at these files as often as every says. If it cannot
// read changed files, it keeps the value and warns once.
func Load[T any](every time.Duration, warn func(string), read func() (T, []string, error)) (*Value[T], error) {
	v := &Value[T]{every: every, read: read, warn: warn, looked: time.Now()}
	var err error
	v.value, v.paths, err = read()
	return v, err
}

func (v *Value[T]) stamps() []stamp {
	out := make([]stamp, len(v.paths))
	for i, path := range v.paths {
		if at, err := os.Stat(path); err == nil {
			out[i] = stamp{time: at.ModTime(), size: at.Size()}
			if st, ok := at.Sys().(*syscall.Stat_t); ok {
				out[i].inode = st.Ino
			}
		}
	}
	return out
}

// Get returns the value as of the last look at the files.
func (v *Value[T]) Get() T {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.looked) < v.every {
		return v.value
	}
	v.looked = time.Now()
	files := v.stamps()
	if slices.Equal(files, v.files) {
		return v.value
	}
	// If the value comes from other files now, the next look reads it once more: only then is it
	// known that they did not change while they were read.
	v.files = files
	value, paths, err := v.read()
	v.paths = paths
	if err != nil {
		if text := err.Error(); text != v.warned {
			v.warned = text
			v.warn("a changed file is not used: " + text)
		}
		return v.value
	}
	v.value, v.warned = value, ""
	return value
}

// Expire makes the next Get look at the files.
func (v *Value[T]) Expire() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looked = time.Time{}
}
