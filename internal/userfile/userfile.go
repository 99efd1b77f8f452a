// Package userfile opens the files that a user names: recordings, profiles, and files of
// configuration. A path may lead to anything, such as a pipe that nobody writes to.
package userfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"syscall"
)

// ErrNotRegular says that a path leads to a directory, a device, a pipe or a socket.
var ErrNotRegular = errors.New("not a regular file")

// errDirectory is ErrNotRegular of a directory.
var errDirectory = fmt.Errorf("%w but a directory: name a file in it", ErrNotRegular)

// Open opens a regular file for reading and returns what it is. Opening does not wait and
// has no effect on a device, and what was opened is what was checked.
func Open(path string) (*os.File, fs.FileInfo, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0) // os adds O_CLOEXEC
	if err != nil {
		if errors.Is(err, syscall.ENXIO) { // a socket, or a device without a driver
			err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
		}
		return nil, nil, err
	}
	info, err := f.Stat()
	if err == nil && info.IsDir() {
		err = &fs.PathError{Op: "open", Path: path, Err: errDirectory}
	} else if err == nil && !info.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: path, Err: ErrNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	return f, info, nil
}

// Read returns the content of a regular file of at most limit bytes, and what the file is.
func Read(path string, limit int64) ([]byte, fs.FileInfo, error) {
	f, info, err := Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	content, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, nil, err
	}
	if int64(len(content)) > limit {
		return nil, nil, fmt.Errorf("%s is larger than %d bytes", path, limit)
	}
	return content, info, nil
}
