package unwind

import (
	"fmt"
	"os"

	"go.opentelemetry.io/ebpf-profiler/libpf"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/process"

	"github.com/gpumemtrace/gpumemtrace/internal/proc"
)

// A dying process may end while its files are read. The unwinder remembers for
// hours what is wrong with a file, for every process that maps it, unless the
// error is os.ErrNotExist: so every error of a process that has ended is one.
type dying struct{ process.Process }

func (d dying) OpenELF(file string) (*pfelf.File, error) {
	f, err := d.Process.OpenELF(file)
	return f, d.explain(err)
}

func (d dying) OpenMappingFile(m *process.RawMapping) (process.ReadAtCloser, error) {
	f, err := d.Process.OpenMappingFile(m)
	return f, d.explain(err)
}

func (d dying) CalculateMappingFileID(m *process.RawMapping) (libpf.FileID, error) {
	id, err := d.Process.CalculateMappingFileID(m)
	return id, d.explain(err)
}

func (d dying) explain(err error) error {
	if err != nil && gone(int(d.PID())) {
		return fmt.Errorf("%w: %w", err, os.ErrNotExist)
	}
	return err
}

// gone tells whether a process has no memory any more: its mappings go before
// it can be seen to have ended.
func gone(pid int) bool {
	if proc.Ended(pid) {
		return true
	}
	for _, err := range proc.Mappings(pid) {
		return err != nil
	}
	return true
}
