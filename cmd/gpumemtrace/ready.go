package main

import (
	"fmt"
	"io"
	"os"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
)

// readyFile is the path of the empty file that says that the probes are on, ""
// for none.
type readyFile string

// newReadyFile finds out before the trace whether the file can be created. One
// that is there would say so too early: it is removed with --force, and else an
// error. No symbolic link is followed.
func newReadyFile(f *traceFlags) (readyFile, error) {
	if f.readyFile == "" {
		return "", nil
	}
	err := atomicfile.Check(f.readyFile, f.force)
	if err == nil && f.force {
		if err = os.Remove(f.readyFile); os.IsNotExist(err) {
			err = nil
		}
	}
	return readyFile(f.readyFile), err
}

func (r readyFile) write() error {
	if r == "" {
		return nil
	}
	if err := atomicfile.Write(string(r), false, func(io.Writer) error { return nil }); err != nil {
		return fmt.Errorf("say ready: %w", err)
	}
	return nil
}
