package server

import (
	"crypto/tls"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/userfile"
)

// maxPEM bounds the file of a certificate with its chain, or of a key, in bytes.
const maxPEM = 1 << 20

// lookAgain is how often files are looked at for changes.
const lookAgain = 5 * time.Second

// A reloaded is something that is read from files, again when they change.
type reloaded[T any] struct {
	paths []string
	read  func() (T, error)
	warn  func(string)

	mu     sync.Mutex
	value  T
	looked time.Time
	files  []stamp
}

// A stamp tells a file's contents apart, as far as its directory does.
type stamp struct {
	time time.Time
	size int64
}

// load returns something whose files are as they are to be. Later they may not be: then
// what was read before stays, and warn hears of it once.
func load[T any](warn func(string), read func() (T, error), paths ...string) (*reloaded[T], error) {
	r := &reloaded[T]{paths: paths, read: read, warn: warn, looked: time.Now()}
	r.files = r.stamps()
	var err error
	r.value, err = read()
	return r, err
}

func (r *reloaded[T]) stamps() []stamp {
	out := make([]stamp, len(r.paths))
	for i, path := range r.paths {
		if at, err := os.Stat(path); err == nil {
			out[i] = stamp{at.ModTime(), at.Size()}
		}
	}
	return out
}

// get returns what the files had when they were looked at last.
func (r *reloaded[T]) get() T {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.looked) < lookAgain {
		return r.value
	}
	r.look()
	return r.value
}

// look reads the files again if they changed.
func (r *reloaded[T]) look() {
	r.looked = time.Now()
	files := r.stamps()
	if slices.Equal(files, r.files) {
		return
	}
	r.files = files
	value, err := r.read()
	if err != nil {
		r.warn("what was read before stays: " + err.Error())
		return
	}
	r.value = value
}

// certificate is that of two files.
func certificate(warn func(string), cert, key string) (*reloaded[*tls.Certificate], error) {
	return load(warn, func() (*tls.Certificate, error) {
		var pem [2][]byte
		for i, path := range []string{cert, key} {
			var err error
			if pem[i], _, err = userfile.Read(path, maxPEM); err != nil {
				return nil, err
			}
		}
		c, err := tls.X509KeyPair(pem[0], pem[1])
		return &c, err
	}, cert, key)
}
