package unwind

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/host"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
)

// tables is how the unwinder's Go side writes its maps. Unwind tables are written by
// itself: the unwinder's own way takes longer, raises RLIMIT_MEMLOCK, and does not
// tell when a table can be used.
type tables struct {
	ebpfapi.EbpfHandler
	kernel *kernel
	rules  rules

	// offered is the table of the executable that the unwinder asked for last, and
	// loading those that one analysis, of, loads. It is called by one goroutine at a
	// time.
	offered *loadable
	loading *loads
	of      *analysis

	mu     sync.Mutex
	loaded map[host.FileID]*loadable
	known  map[filememo.Sum]int // of those, by what they were made of
}

// loads are tables on their way into the kernel.
type loads struct {
	sync.WaitGroup
	mu  sync.Mutex
	err error
}

// wait returns when all can be used.
func (l *loads) wait() error {
	l.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

func newTables(handler ebpfapi.EbpfHandler, k *kernel) *tables {
	return &tables{
		EbpfHandler: handler, kernel: k, rules: rules{put: handler.UpdateUnwindInfo, numbers: make(map[sdtypes.UnwindInfo]*rule)},
		loading: new(loads), loaded: make(map[host.FileID]*loadable), known: make(map[filememo.Sum]int),
	}
}

// A loadable is an unwind table in a map of the kernel's that no program sees yet.
type loadable struct {
	content filememo.Sum // zero for what is not remembered
	*table
	inner   *ebpf.Map
	size    int // the map has 1<<size entries
	perPage []uint16
}

// prepare makes the map of a table.
func (t *tables) prepare(content filememo.Sum, encoded []byte) (*loadable, error) {
	decoded, err := decodeTable(encoded)
	if err != nil {
		return nil, err
	}
	l := &loadable{content: content, table: decoded}
	if l.count == 0 {
		return l, nil
	}
	numbers, err := t.rules.take(l.rules)
	if err != nil {
		return nil, err
	}
	if l.inner, l.size, err = t.newInner(l.count); err == nil {
		err = mapped(l.inner, func(memory []byte) (err error) {
			l.perPage, err = l.write(memory, numbers)
			return err
		})
	}
	if err != nil {
		t.drop(l)
		return nil, fmt.Errorf("write unwind table: %w", err)
	}
	l.entries = nil // they keep all that was decoded
	return l, nil
}

// drop gives back what a table holds that no program sees.
func (t *tables) drop(l *loadable) {
	if l.inner != nil {
		l.inner.Close()
	}
	if l.count > 0 {
		t.rules.release(l.rules)
	}
}

// newInner makes a map for count entries and returns the binary logarithm of how many
// it has.
func (t *tables) newInner(count int) (*ebpf.Map, int, error) {
	size := max(bits.Len32(uint32(count)), support.StackDeltaBucketSmallest)
	if t.outer(uint16(size)) == nil {
		return nil, 0, errTooLarge
	}
	spec := t.kernel.deltas.Copy()
	spec.Name = "unwind_table"
	spec.MaxEntries = 1 << size
	inner, err := ebpf.NewMap(spec)
	return inner, size, err
}

// mapped calls f with an array's memory: element by element the kernel would take
// longer than the analysis itself.
func mapped(array *ebpf.Map, f func(memory []byte) error) error {
	page := os.Getpagesize()
	size := (int(array.MaxEntries())*stride + page - 1) / page * page
	memory, err := unix.Mmap(array.FD(), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	return errors.Join(f(memory), unix.Munmap(memory))
}

// intervals stand for the table on its way through the unwinder's Go side, which makes
// of them one entry and as many pages as the table has.
func (l *loadable) intervals() *sdtypes.IntervalData {
	if l.count == 0 {
		return &sdtypes.IntervalData{}
	}
	all := sdtypes.StackDeltaArray{{Info: sdtypes.UnwindInfoInvalid}}
	return &sdtypes.IntervalData{NumDeltas: 1, Blocks: []*sdtypes.BasicBlock{{Start: l.start, End: l.end, Deltas: all}}}
}

// UpdateExeIDToStackDeltas implements ebpfapi.EbpfHandler: it loads the table that was
// offered for an executable, or else one of the unwinder's own making (the vdso's on
// arm64), and returns which map holds it. t.loading tells when it is there.
func (t *tables) UpdateExeIDToStackDeltas(file host.FileID, deltas []ebpfapi.StackDeltaEBPF) (uint16, error) {
	l := t.offered
	if l == nil || l.count == 0 {
		var err error
		if l, err = t.own(deltas); err != nil {
			return 0, err
		}
	}
	outer := t.outer(uint16(l.size))
	loading := t.loading
	loading.Go(func() {
		// The kernel returns once all CPUs have passed by, tens of milliseconds.
		if err := outer.Put(uint64(file), l.inner); err != nil {
			loading.mu.Lock()
			defer loading.mu.Unlock()
			loading.err = errors.Join(loading.err, fmt.Errorf("add unwind table: %w", err))
		}
		l.inner.Close()
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded[file] = l
	t.known[l.content]++
	return uint16(l.size), nil
}

// own makes a table of entries whose rules the unwinder has numbered.
func (t *tables) own(deltas []ebpfapi.StackDeltaEBPF) (*loadable, error) {
	l := &loadable{table: &table{}}
	var err error
	if l.inner, l.size, err = t.newInner(len(deltas)); err != nil {
		return nil, fmt.Errorf("make unwind table: %w", err)
	}
	err = mapped(l.inner, func(memory []byte) error {
		for i, d := range deltas { // struct StackDelta
			binary.NativeEndian.PutUint16(memory[i*stride:], d.AddressLow)
			binary.NativeEndian.PutUint16(memory[i*stride+2:], t.rules.translate(d.UnwindInfo))
		}
		return nil
	})
	if err != nil {
		l.inner.Close()
		return nil, fmt.Errorf("write unwind table: %w", err)
	}
	return l, nil
}

// UpdateStackDeltaPages implements ebpfapi.EbpfHandler: it tells the pages of the table
// that was loaded last.
func (t *tables) UpdateStackDeltaPages(file host.FileID, perPage []uint16, size uint16, first uint64) error {
	if l := t.offered; l != nil && l.count > 0 {
		perPage = l.perPage
	}
	return t.EbpfHandler.UpdateStackDeltaPages(file, perPage, size, first)
}

// UpdateUnwindInfo implements ebpfapi.EbpfHandler: the unwinder numbers a rule of its
// own.
func (t *tables) UpdateUnwindInfo(index uint16, info sdtypes.UnwindInfo) error {
	return t.rules.number(index, info)
}

// has tells whether a table of this content is loaded.
func (t *tables) has(content filememo.Sum) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[content] > 0
}

// DeleteExeIDToStackDeltas implements ebpfapi.EbpfHandler.
func (t *tables) DeleteExeIDToStackDeltas(file host.FileID, size uint16) error {
	outer := t.outer(size)
	if outer == nil {
		return fmt.Errorf("no unwind tables of size %d", size)
	}
	t.mu.Lock()
	if l := t.loaded[file]; l != nil {
		delete(t.loaded, file)
		if t.known[l.content]--; t.known[l.content] == 0 {
			delete(t.known, l.content)
		}
		t.rules.release(l.rules)
	}
	t.mu.Unlock()
	return outer.Delete(uint64(file))
}

// outer is the map of the tables of up to 1<<size entries.
func (t *tables) outer(size uint16) *ebpf.Map {
	return t.kernel.maps[fmt.Sprintf("exe_id_to_%d_stack_deltas", size)]
}
