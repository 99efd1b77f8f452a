package heap

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// Bounds of what C++ holds for PyTorch.
const (
	workspaceCode  = 96      // bytes of a function that returns a table
	workspaceWords = 12      // of a node of the table
	maxWorkspaces  = 1 << 10 // handles and streams
	reducerWords   = 1 << 16 // of all vectors of a reducer
)

// findWorkspaces finds the functions of PyTorch that return its tables of the workspaces of cuBLAS, by handle and
// stream. What is not found is not named.
func findWorkspaces(pid int) (functions []uint64) {
	_ = inLibrary(pid, "libtorch_cuda.so", func(m *proc.Mapping, e *proc.ELF) error {
		found, err := e.Functions(func(name []byte) bool {
			return strings.HasPrefix(string(name), "_ZN2at4cuda") && strings.HasSuffix(string(name), "_handle_stream_to_workspaceEv")
		})
		for _, offset := range found {
			if at := m.Start - m.Offset + offset; m.Holds(at) {
				functions = append(functions, at)
			}
		}
		return err
	})
	return functions
}

// workspaces returns where workspaces of cuBLAS lie, among blocks. A function loads its table's address from a variable
// at a distance from its code, which any four bytes may be. A table is proven by its nodes: each has one block.
func workspaces(m *cache, functions []uint64, blocks map[uint64]*holder.Storage) (out []uint64) {
	for _, f := range functions {
		code := slices.Clone(m.bytes(f, workspaceCode))
		for i := 0; i+4 <= len(code) && m.tick(); i++ {
			at := f + uint64(i+4) + uint64(int64(int32(binary.LittleEndian.Uint32(code[i:]))))
			if at&7 != 0 {
				continue
			}
			if found := workspaceTable(m, m.word(at), blocks); len(found) > 0 {
				out = append(out, found...)
				break
			}
		}
	}
	return out
}

// workspaceTable reads a std::map from a handle and a stream to a block, nil if it is none.
func workspaceTable(m *cache, table uint64, blocks map[uint64]*holder.Storage) (out []uint64) {
	all := table != 0 && table&7 == 0
	if !all || !eachNode(m, table+8, maxWorkspaces, func(node uint64) {
		w := m.words(node, workspaceWords)
		i := slices.IndexFunc(w, func(x uint64) bool { return blocks[x] != nil })
		if all = all && i >= 0; all {
			out = append(out, w[i])
		}
	}) || !all {
		return nil
	}
	return out
}

// eachNode calls visit with each node of a std::set or std::map whose own node is at an address. It reports whether
// there is one, of so many nodes at most.
func eachNode(m *cache, own, most uint64, visit func(node uint64)) bool {
	left := m.word(own + 32)
	if !(&allocatorReader{mem: m}).isSet(own) || left > most {
		return false
	}
	for todo := []uint64{m.word(own + 8)}; len(todo) > 0 && left > 0 && m.tick(); {
		node := todo[len(todo)-1]
		if todo = todo[:len(todo)-1]; node != 0 {
			left--
			visit(node)
			todo = append(todo, m.word(node+16), m.word(node+24))
		}
	}
	return left == 0
}

// nameWorkspaces names workspaces of cuBLAS among what C++ alone holds.
func nameWorkspaces(m *cache, functions func() []uint64, reading *holder.Reading) {
	native := map[uint64]*holder.Storage{}
	for i := range reading.Storages {
		if s := &reading.Storages[i]; s.OnGPU() && s.Native() {
			native[s.Address] = s
		}
	}
	if len(native) == 0 || functions == nil {
		return
	}
	for _, at := range workspaces(m, functions(), native) {
		native[at].Holder = holder.Workspace
	}
}

// reducer adds the tensors that the reducer of a DistributedDataParallel has, such as buckets. It is an object of C++:
// the one of pybind11 has its address, and a shared pointer to it. What Python has an object of has a path without it.
func (r *references) reducer(at uint64, c *class) {
	o := r.py.instanceAttribute(at, c, "reducer")
	if !strings.HasSuffix(r.py.typeOf(o).name, "._distributed_c10d.Reducer") {
		return
	}
	w := r.mem.words(o+16, 3)
	if len(w) < 3 || w[0] != w[1] || !r.cpp.shared(w[2]) {
		return
	}
	own := r.cpp.chunk(w[0])
	words := own
	for i := 0; i+3 <= len(own); i++ {
		if begin, end, room := own[i], own[i+1], own[i+2]; begin < end && end <= room && begin&7 == 0 && r.cpp.allocated(begin, room-begin) && len(words) < reducerWords {
			words = append(words, r.mem.words(begin, int(min(end-begin, reducerWords))/8)...)
		}
	}
	for _, w := range words {
		if r.isImpl(w) && r.mem.word(w+uint64(r.torch.object)) == 0 {
			r.to(r.addExtra(extraImpl, w), label(kindName, int(r.py.names.index("reducer"))))
		}
	}
}

// sizesOf returns the sizes of the blocks that are allocated, by address.
func sizesOf(all []holder.Allocator) map[uint64]uint64 {
	sizes := map[uint64]uint64{}
	for i := range all {
		for _, b := range all[i].Blocks {
			if b.State == holder.Allocated {
				sizes[b.Address] = b.Size
			}
		}
	}
	return sizes
}

// addNameless adds a storage for each block that only C++ holds: none of the heap's storages lies in it. A block
// may also have no storage because the program made it while the heap was read. before has the blocks from before
// that, and the bytes of others are counted in Came.
func addNameless(reading *holder.Reading, before map[uint64]uint64) {
	named := occupied(reading.Storages)
	for i := range reading.Allocators {
		a := &reading.Allocators[i]
		for _, b := range a.Blocks {
			if b.State != holder.Allocated || named(a.Device, b.Address, b.Address+b.Size) {
				continue
			}
			if before[b.Address] != b.Size {
				reading.Came += b.Size
				continue
			}
			name := ""
			switch {
			case b.Private == holder.UnknownPool:
			case b.Private.First != 0:
				name = holder.NativeGraph
			case b.Private.Second != 0:
				name = holder.NativePrivate
			}
			reading.Storages = append(reading.Storages, holder.Storage{Address: b.Address, Bytes: b.Requested, Device: a.Device, Holder: name})
		}
	}
	sorting.Stable(reading.Storages, func(a, b holder.Storage) int { return cmp.Compare(a.Address, b.Address) })
}
