package symbolize

import (
	"github.com/gpumemtrace/gpumemtrace/internal/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/snapshot"
)

// Program returns the mapping of the program that the process pid runs, nil if
// it cannot be told: a process may run deleted or unreadable files.
func (s *Symbolizer) Program(pid uint32) *snapshot.Mapping {
	f, path, err := proc.OpenExecutable(int(pid))
	if err != nil {
		return nil
	}
	defer f.Close()
	m := &snapshot.Mapping{Path: path}
	if e, err := f.ELF(); err == nil {
		m.BuildID = e.BuildID()
	}
	for r, err := range proc.Mappings(int(pid)) {
		if err == nil && r.Name() == path {
			m.Start, m.Limit, m.Offset = r.Start, r.End, r.Offset
			break
		}
	}
	return m
}
