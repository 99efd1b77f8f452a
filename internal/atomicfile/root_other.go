//go:build !linux

package atomicfile

import (
	"errors"
	"io/fs"
	"os"
)

// openRoot opens a directory, and makes missing ones if mode is not 0. Unlike on Linux,
// symbolic links of other users on the way are followed.
func openRoot(path string, mode fs.FileMode) (*os.Root, error) {
	if mode != 0 {
		if err := os.MkdirAll(path, mode); err != nil {
			return nil, err
		}
	}
	return os.OpenRoot(path)
}

func writable(*os.File) error { return nil }

func mine(fs.FileInfo) bool { return false }

// Own fails: no agent runs here.
func Own(*os.File) error { return errors.ErrUnsupported }
