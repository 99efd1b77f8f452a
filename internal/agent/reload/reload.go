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
	paths []string
	every time.Duration
	read  func() (T, error)
	warn  func(string)

	mu     sync.Mutex
	value  T
	looked time.Time
	files  []stamp
}

// A stamp is different after a file changed, as far as its directory shows that.
type stamp struct {
	time  time.Time
	size  int64
	inode uint64
}

// Load reads a value. Later it looks at the files as often as every says. If it cannot read
// changed files, it keeps the value and warns once.
func Load[T any](every time.Duration, warn func(string), read func() (T, error), paths ...string) (*Value[T], error) {
	v := &Value[T]{paths: paths, every: every, read: read, warn: warn, looked: time.Now()}
	v.files = v.stamps()
	var err error
	v.value, err = read()
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
	v.files = files
	value, err := v.read()
	if err != nil {
		v.warn("a changed file is not used: " + err.Error())
		return v.value
	}
	v.value = value
	return value
}

// Expire makes the next Get look at the files.
func (v *Value[T]) Expire() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.looked = time.Time{}
}
