package unwind

import (
	"encoding/binary"
	"fmt"

	"github.com/cilium/ebpf"
)

// codeCells are the cells of bpf/unwind_codes.h: how many code objects were freed at the
// addresses that share one.
type codeCells struct{ memory *ebpf.Memory }

// cellSize is that of a cell, in bytes, and cellFactor UW_CELL_FACTOR.
const (
	cellSize   = 4
	cellFactor = 0x9e3779b1
)

// newCodeCells maps the cells of the map unwind_codes.
func newCodeCells(m *ebpf.Map) (codeCells, error) {
	memory, err := m.Memory()
	if err != nil {
		return codeCells{}, fmt.Errorf("map the code objects' cells: %w", err)
	}
	return codeCells{memory}, nil
}

// of is uw_code_cell for a process's code object.
func (c codeCells) of(pid uint32, object uint64) uint32 {
	var cell [cellSize]byte
	at := mix(uint64(pid), object) % uint64(c.memory.Size()/cellSize)
	// It lies within the memory, which is never unmapped while it is in use.
	_, _ = c.memory.ReadAt(cell[:], int64(at*cellSize))
	return binary.NativeEndian.Uint32(cell[:]) * cellFactor
}
