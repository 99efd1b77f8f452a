package heap

import (
	"cmp"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
	"github.com/gpumemtrace/gpumemtrace/internal/sorting"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

// PyTorch's library for GPU memory, and the pointer to its allocator that it exports.
const (
	allocatorFile   = "libc10_cuda.so"
	allocatorSymbol = "_ZN3c104cuda20CUDACachingAllocator9allocatorE"
)

// Bounds of one allocator, and of what is looked through to find its parts.
const (
	maxDevices      = 64
	maxTableSlots   = 1 << 22 // of all tables together
	maxGPUBlocks    = 1 << 20
	maxPools        = 1 << 12
	allocatorWords  = 1 << 12 // of the object: 67 mutexes and 67 tables come first
	deviceWords     = 1 << 11 // of the part that one GPU has
	poolWords       = 48      // of a private pool
	allocatorRounds = 4
	blockSamples    = 1 << 10
	maxElements     = 1 << 22 // of all sets together
	allocatorShare  = 4       // of the time and the bytes of a reading
)

// FindAllocator finds the pointer to PyTorch's allocator of GPU memory in a process, 0 if it has none.
func FindAllocator(pid int) (pointer uint64, err error) {
	err = inLibrary(pid, allocatorFile, func(m *proc.Mapping, e *proc.ELF) error {
		address, ok, err := e.Object(allocatorSymbol)
		if err == nil && ok {
			pointer, err = loadedAt(e, m, address)
		}
		return err
	})
	return pointer, err
}

// inLibrary calls look with a library that a process has by a name, if it has it.
func inLibrary(pid int, name string, look func(m *proc.Mapping, e *proc.ELF) error) error {
	for m, err := range proc.Mappings(pid) {
		if err != nil {
			return err
		}
		if !m.HasFile() || path.Base(m.Name()) != name {
			continue
		}
		f, err := proc.OpenMapped(pid, &m)
		if err != nil {
			return err
		}
		defer f.Close()
		e, err := f.ELF()
		if err != nil {
			return err
		}
		return look(&m, e)
	}
	return nil
}

// An allocatorReader reads PyTorch's caching allocator from its own tables. Nothing states where the
// members of its classes are, so each offset is found by what must hold: a block says the address that it is
// listed under, its neighbour begins where it ends, a set's root refers back to the set, and the sums
// of blocks are the allocator's own statistics.
type allocatorReader struct {
	mem   *cache
	cpp   *cppReader
	arena arena
	at    int // of a block: the word that has its address
	// doubt says how few of the listed blocks have it there, "" if that is proof enough. Else the sums of
	// blocks must prove it.
	doubt string
	left  int // slots of tables that may still be read
	more  int // elements of sets that may still be read

	blocks  []gpuBlock
	index   map[uint64]uint32        // of blocks, by the address of the object
	todo    []uint64                 // objects to read
	pools   map[uint64]pool          // whose sets were read
	private map[uint64]holder.PoolID // by the address of the object
	devices map[uint64]bool          // whether what is at an address has pools
	gone    uint64
}

var (
	allocatorGone = losses.Add("heap_allocator_changed", "parts of PyTorch's allocator that changed while they were read, or were too many")
	allocatorOff  = losses.Add("heap_allocator_off", "readings of PyTorch's allocator that do not add up to its statistics: it changed while it was read")
)

// A pool is what a block says of the pool that it is of.
type pool struct {
	id    holder.PoolID
	small bool
}

// A gpuBlock is an object of the class Block.
type gpuBlock struct {
	holder.Block
	device     int32
	pool       uint64
	prev, next uint64
}

// readAllocator reads the allocator that a pointer leads to. why says why it could not. If the allocator
// changes while it is read, it is read again. The reading that comes nearest to the statistics is returned.
func readAllocator(m *cache, cpp *cppReader, pointer uint64, rounds int, lost *loss.Set) (_ []holder.Allocator, why string) {
	var best []holder.Allocator
	least, gone := ^uint64(0), uint64(0)
	for range rounds {
		m.forget()
		r := allocatorReader{mem: m, cpp: cpp, left: maxTableSlots, more: maxElements, pools: map[uint64]pool{}, private: map[uint64]holder.PoolID{}, devices: map[uint64]bool{}}
		found, refused := r.read(pointer)
		r.arena.release()
		if refused != "" {
			why = refused
			continue
		}
		off := uint64(0)
		for i := range found {
			off = min(off+found[i].Off(), math.MaxInt64)
		}
		if off > 0 && r.doubt != "" {
			why = r.doubt
			continue
		}
		if off += r.gone; off < least {
			best, least, gone = found, off, r.gone
		}
		if off == 0 || m.stopped != nil {
			break
		}
	}
	if m.stopped != nil {
		return nil, "PyTorch's allocator was not read to its end: " + m.stopped.Error()
	}
	if best == nil {
		return nil, why
	}
	lost.Add(allocatorGone, gone)
	if least > gone {
		lost.Add(allocatorOff, 1)
	}
	return best, ""
}

// read reads the allocator once.
func (r *allocatorReader) read(pointer uint64) (_ []holder.Allocator, why string) {
	object := r.mem.word(pointer)
	class := r.cpp.className(r.mem.word(object))
	switch {
	case object == 0:
		return nil, "PyTorch has not used a GPU yet"
	case strings.Contains(class, "CudaMallocAsync"):
		return nil, "PyTorch allocates by cudaMallocAsync, and has no table of blocks"
	case !strings.Contains(class, "NativeCachingAllocator"):
		return nil, "PyTorch's allocator is not its own"
	}
	words := r.mem.words(object, allocatorWords)
	first, n := longestRun(words)
	if n == 0 {
		return nil, "PyTorch's allocator is not laid out as in any known release: it has no tables"
	}
	end := first + n*tableWords
	devices := r.findDevices(words[end:])
	if len(devices) == 0 {
		return nil, "PyTorch's allocator is not laid out as in any known release: it has no GPU"
	}
	n = 0
	for i := first; i < end; i += tableWords {
		n += int(words[i+3])
	}
	listed := room[entry](&r.arena, min(n, maxGPUBlocks))[:0]
	for i := first; i < end; i += tableWords {
		listed = r.slots(listed, words[i:], 3)
	}
	r.index = make(map[uint64]uint32, len(listed))
	r.blocks, r.todo = room[gpuBlock](&r.arena, len(listed))[:0], room[uint64](&r.arena, 2*len(listed))[:0]
	if why = r.findAddress(listed); why != "" {
		return nil, why
	}
	for _, s := range listed {
		r.want(s.value)
	}
	out := make([]holder.Allocator, 0, len(devices))
	figures := make([][]int64, len(devices))
	for i, d := range devices {
		out = append(out, holder.Allocator{Device: int32(i)})
		figures[i] = r.device(d)
	}
	r.follow()
	all := r.blocks
	for i := range all {
		b := &all[i]
		before, ok := r.index[b.prev]
		b.First = !ok || all[before].State == holder.Unmapped
	}
	order := make([]uint32, len(all))
	for i := range order {
		order[i] = uint32(i)
	}
	sorting.Stable(order, func(i, j uint32) int {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.device, b.device), cmp.Compare(a.Address, b.Address), -cmp.Compare(a.Size, b.Size))
	})
	expandable(all, order)
	var last *gpuBlock
	for n, i := range order {
		b := &all[i]
		if b.device < 0 || int(b.device) >= len(out) {
			r.gone++
			continue
		}
		if last != nil && last.device == b.device && b.Address < last.Address+last.Size {
			r.gone++ // the allocator changed one of the two while it was read
			continue
		}
		last = b
		of, ok := r.pools[b.pool]
		if !ok {
			of.id = holder.UnknownPool
		}
		b.Private, b.Small = of.id, of.small
		if out[b.device].Blocks == nil {
			end := n + 1
			for end < len(order) && all[order[end]].device == b.device {
				end++
			}
			out[b.device].Blocks = make([]holder.Block, 0, end-n)
		}
		out[b.device].Blocks = append(out[b.device].Blocks, b.Block)
	}
	for i, d := range devices {
		r.mem.forget()
		out[i].Figures = r.statistics(figures[i], d)
	}
	return slices.DeleteFunc(out, func(a holder.Allocator) bool { return len(a.Blocks) == 0 && a.Figures == nil }), ""
}

// expandable marks the blocks of expandable segments, by the order of all blocks. A segment is one if its chain of neighbours has addresses
// without memory: PyTorch reserves more addresses for each than the GPU has memory.
func expandable(all []gpuBlock, order []uint32) {
	for from := 0; from < len(order); {
		to, unmapped := from, false
		for ; to < len(order) && (to == from || all[order[to]].prev != 0); to++ {
			unmapped = unmapped || all[order[to]].State == holder.Unmapped
		}
		for _, i := range order[from:to] {
			all[i].Expandable = unmapped
		}
		from = to
	}
}

// findDevices returns the addresses of the objects that stand for the GPUs. The allocator has a vector of
// pointers to them. It is the first vector in words whose pointers all lead to objects with pools.
func (r *allocatorReader) findDevices(words []uint64) []uint64 {
	for i := 0; i+3 <= len(words) && r.mem.tick(); i++ {
		begin, end, room := words[i], words[i+1], words[i+2]
		if begin == 0 || begin&7 != 0 || end <= begin || room < end || end-begin > 8*maxDevices || (end-begin)&7 != 0 {
			continue
		}
		out := r.mem.words(begin, int(end-begin)/8)
		if len(out) == int(end-begin)/8 && !slices.ContainsFunc(out, func(at uint64) bool { return !r.hasPools(at) }) {
			return out
		}
	}
	return nil
}

// hasPools reports whether an object has the sets of two pools.
func (r *allocatorReader) hasPools(at uint64) bool {
	if has, ok := r.devices[at]; ok || at&7 != 0 {
		return has
	}
	n := 0
	for i := range uint64(len(r.deviceWords(at))) {
		if n < 4 && r.mem.tick() && r.isSet(at+8*i) {
			n++
		}
	}
	r.devices[at] = n == 4
	return n == 4
}

// deviceWords returns the words of the object that a GPU has.
func (r *allocatorReader) deviceWords(at uint64) []uint64 {
	return r.mem.words(at, int(min(deviceWords, r.mem.word(at-8)/8)))
}

// findAddress finds which word of a block has its address, from blocks and what they are listed under.
func (r *allocatorReader) findAddress(listed []entry) (why string) {
	const least, most = 5, 24
	var votes [most]int
	step := max(1, len(listed)/blockSamples)
	n := 0
	for i := 0; i < len(listed); i += step {
		n++
		w := r.mem.words(listed[i].value, most)
		for at := least; at < len(w); at++ {
			if w[at] == listed[i].key {
				votes[at]++
				break
			}
		}
	}
	for at, v := range votes {
		if v > votes[r.at] {
			r.at = at
		}
	}
	if n == 0 {
		return "PyTorch has no tensor on a GPU yet"
	}
	if votes[r.at]*4 < n*3 {
		r.doubt = fmt.Sprintf("PyTorch's blocks are not laid out as in any known release: %d of %d say their address", votes[r.at], n)
		if votes[r.at] == 0 {
			return r.doubt
		}
	}
	return ""
}

// want has an object read that is said to be a block.
func (r *allocatorReader) want(at uint64) {
	if _, ok := r.index[at]; ok || at == 0 {
		return
	}
	if len(r.todo) == maxElements {
		r.gone++
		return
	}
	r.todo = append(r.todo, at)
}

// follow reads the blocks that are wanted, their neighbours, and those of their pools.
func (r *allocatorReader) follow() {
	for len(r.todo) > 0 && r.mem.tick() {
		at := r.todo[len(r.todo)-1]
		r.todo = r.todo[:len(r.todo)-1]
		if _, ok := r.index[at]; ok {
			continue
		}
		b, ok := r.block(at)
		if !ok || len(r.blocks) == maxGPUBlocks {
			r.gone++
			continue
		}
		if len(r.blocks) == cap(r.blocks) {
			r.blocks = resized(&r.arena, r.blocks, 2*cap(r.blocks)+64)
		}
		r.index[at] = uint32(len(r.blocks))
		r.blocks = append(r.blocks, b)
		r.want(b.prev)
		r.want(b.next)
		r.pool(b.pool)
	}
}

// block reads a block: size, requested size, pool, address, flags, neighbours, in this order, and the
// GPU and the stream at its begin.
func (r *allocatorReader) block(at uint64) (b gpuBlock, ok bool) {
	if at&7 != 0 {
		return b, false
	}
	bytes := r.mem.bytes(at, 8*(r.at+4))
	if bytes == nil {
		return b, false
	}
	w := func(i int) uint64 { return word(bytes[8*i:]) }
	const granule = 512
	size, requested, address, flags := w(r.at-3), w(r.at-2), w(r.at), w(r.at+1)
	if size == 0 || size%granule != 0 || size > maxTensorBytes || address == 0 || address%granule != 0 || address >= maxAddress {
		return b, false
	}
	allocated, mapped := flags&0xff, flags>>8&0xff
	if allocated > 1 || mapped > 1 || allocated == 1 && requested > size {
		return b, false
	}
	b = gpuBlock{device: int32(int8(w(0))), pool: w(r.at - 1), prev: w(r.at + 2), next: w(r.at + 3)}
	b.Block = holder.Block{Address: address, Size: size, Stream: w(1), State: holder.Free}
	switch {
	case mapped == 0:
		b.State = holder.Unmapped
	case allocated == 1:
		b.State, b.Requested = holder.Allocated, requested
	case r.waits(at):
		b.State = holder.Waiting
	}
	return b, true
}

// waits reports whether a block that is not allocated waits for events of other streams. Their number
// follows the neighbours.
func (r *allocatorReader) waits(at uint64) bool {
	n := int32(r.mem.word(at + 8*uint64(r.at+4)))
	return n > 0 && n < 1<<20
}

// pool reads the free blocks of a pool, which begins with a set of them, and a set of those that are not
// mapped. Then it says whether its blocks are small, and which private pool has it, if one does: that has
// an id, and the pool lies in it.
func (r *allocatorReader) pool(at uint64) {
	if _, ok := r.pools[at]; ok || at == 0 || len(r.pools) == maxPools {
		return
	}
	r.set(at + 8)
	unmapped := at + 8 + 8*setWords // older releases have no such set
	r.set(unmapped)
	p := pool{id: holder.UnknownPool}
	if w := r.mem.words(at+8*2*setWords, 2); len(w) == 2 && w[0]&0xff <= 1 && r.isSet(unmapped) {
		owner := w[1]
		id, ok := r.private[owner]
		if owner == 0 || ok && owner < at && at < owner+8*poolWords {
			p = pool{id: id, small: w[0]&0xff == 1}
		}
	}
	r.pools[at] = p
}

// setWords is how many words a std::set has: how it compares, then a node without a value, with the root as its
// parent, then how many elements there are.
const setWords = 6

// isSet reports whether a set's node is at an address.
func (r *allocatorReader) isSet(node uint64) bool {
	w := r.mem.words(node, 5)
	if len(w) < 5 || w[0]&(1<<32-1) != 0 || w[4] > maxGPUBlocks {
		return false
	}
	if w[4] == 0 {
		return w[1] == 0 && w[2] == node && w[3] == node
	}
	return w[1] != 0 && r.mem.word(w[1]+8) == node
}

// set has the elements of a set read, whose node is at an address.
func (r *allocatorReader) set(node uint64) {
	if !r.isSet(node) {
		return
	}
	left := r.mem.word(node + 32)
	todo := []uint64{r.mem.word(node + 8)}
	for len(todo) > 0 && left > 0 && r.mem.tick() {
		at := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		b := r.mem.bytes(at, 40)
		if b == nil {
			continue
		}
		if r.more == 0 {
			r.gone++
			return
		}
		left--
		r.more--
		r.want(word(b[32:]))
		todo = append(todo, word(b[16:]), word(b[24:]))
	}
}

// device looks through the object that a GPU has for its pools, and for tables that list blocks or private
// pools. It returns the words of the object.
func (r *allocatorReader) device(at uint64) []int64 {
	words := r.deviceWords(at)
	for i := range words {
		if i+5 <= len(words) && r.isSet(at+8*uint64(i)) {
			r.set(at + 8*uint64(i))
		}
		if isTable(words[i:]) && !r.listsBlocks(words[i:]) {
			for _, s := range r.slots(nil, words[i:], 4) { // private pools by two numbers
				r.privatePool(s.value, holder.PoolID{First: s.key, Second: s.second})
			}
		}
	}
	out := make([]int64, len(words))
	for i, w := range words {
		out[i] = int64(w)
	}
	return out
}

// listsBlocks reads a table that is a set of blocks, and reports whether it is one. It reads blocks up to the first
// that is one: they lie in another order than memory. follow reads neighbours.
func (r *allocatorReader) listsBlocks(words []uint64) bool {
	list := r.slots(nil, words, 2)
	defer drop(&r.arena, list)
	if !slices.ContainsFunc(list, func(s entry) bool {
		_, ok := r.block(s.value)
		return ok
	}) {
		return false
	}
	for _, s := range list {
		r.want(s.value)
	}
	return true
}

// privatePool reads the sets of a private pool.
func (r *allocatorReader) privatePool(at uint64, id holder.PoolID) {
	if _, ok := r.private[at]; ok || at == 0 || at&7 != 0 || len(r.private) == maxPools {
		return
	}
	for i := range uint64(poolWords) {
		if r.isSet(at + 8*i) {
			r.private[at] = id
			r.set(at + 8*i)
		}
	}
}

// Statistics are four numbers each: now, peak, sums of what was added and taken. There are
// three of each kind, of all, of small and of large blocks, and nine kinds.
const (
	statistic = 4
	statKinds = 9
	statWords = statistic * 3 * statKinds
)

// statistics returns the allocator's own figures, as words had them and as they are now. It returns nil if they
// are not found in words, which begin at an address.
func (r *allocatorReader) statistics(words []int64, at uint64) *holder.Figures {
	for i := 0; i+statWords <= len(words); i++ {
		if !plausible(words[i : i+statWords]) {
			continue
		}
		now := r.mem.words(at+8*uint64(i), statWords)
		if len(now) < statWords {
			return nil
		}
		kind := func(k int) holder.Figure {
			at := k * 3 * statistic
			return holder.Figure{Before: uint64(words[i+at]), Now: now[at], Peak: now[at+1]}
		}
		return &holder.Figures{
			Blocks: kind(0), Segments: kind(1), Allocated: kind(4), Reserved: kind(5), Active: kind(6), Requested: kind(8),
		}
	}
	return nil
}

// plausible reports whether words can be all statistics: each is the difference of its sums and no more than
// its peak, small and large ones are all, and more is reserved than allocated.
func plausible(w []int64) bool {
	for k := 0; k < len(w); k += statistic {
		now, peak, added, taken := w[k], w[k+1], w[k+2], w[k+3]
		if now < 0 || added < 0 || now != added-taken || peak < now || taken < 0 || added > 1<<60 {
			return false
		}
	}
	for k := 0; k < len(w); k += 3 * statistic {
		if w[k] != w[k+statistic]+w[k+2*statistic] {
			return false
		}
	}
	at := func(kind int) int64 { return w[kind*3*statistic] }
	return at(5) > 0 && at(5) >= at(4) && at(6) >= at(4) && at(4) >= at(8) && at(2) >= at(0)
}
