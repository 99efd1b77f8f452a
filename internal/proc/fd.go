package proc

import (
	"fmt"
	"io"
	"iter"
	"os"
)

// someNames is how many names of a directory are read at a time: a process may
// make it hold millions.
const someNames = 1 << 10

// OpenFiles yields what each descriptor of a process leads to: a path of the
// process's choice, or such as "socket:[1]". An error is the last that it
// yields: os.ErrNotExist for a process that is gone, os.ErrPermission for one
// that may not be looked at.
func OpenFiles(pid int) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		dir := dirOf(living(pid)) + "/fd/"
		f, err := os.Open(dir)
		if err != nil {
			yield("", fmt.Errorf("read the open files of process %d: %w", pid, notExist(err)))
			return
		}
		defer f.Close()
		for {
			names, err := f.Readdirnames(someNames)
			for _, name := range names {
				path, err := os.Readlink(dir + name)
				if err != nil {
					continue // closed meanwhile
				}
				if !yield(path, nil) {
					return
				}
			}
			if err == io.EOF {
				return
			}
			if err != nil {
				yield("", fmt.Errorf("read the open files of process %d: %w", pid, notExist(err)))
				return
			}
		}
	}
}
