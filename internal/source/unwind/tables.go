package unwind

import (
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"go.opentelemetry.io/ebpf-profiler/host"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/support"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
)

// tables receives what the unwinder's Go side writes to its maps. It writes unwind tables
// in its own way: the unwinder's takes longer, raises RLIMIT_MEMLOCK, and does not report
// when a table can be used.
type tables struct {
	ebpfapi.EbpfHandler
	kernel    *kernel
	processes *knownProcesses
	rules     rules

	// offered is the table of the executable that the unwinder asked for last, analysis the
	// current analysis, and loading the tables that it loads. One goroutine at a time uses
	// them and own.
	offered  *loadable
	loading  *errgroup.Group
	analysis *analysis
	own      map[uint16]sdtypes.UnwindInfo // the unwinder's rules, by its numbers

	mu     sync.Mutex
	loaded map[host.FileID]*loadable
	known  map[filememo.Sum]int // how many of them, by the content that they were made from
}

func newTables(handler ebpfapi.EbpfHandler, k *kernel) *tables {
	return &tables{
		EbpfHandler: handler, kernel: k, rules: rules{put: handler.UpdateUnwindInfo, numbers: make(map[sdtypes.UnwindInfo]*rule)},
		loading: new(errgroup.Group), own: make(map[uint16]sdtypes.UnwindInfo), loaded: make(map[host.FileID]*loadable), known: make(map[filememo.Sum]int),
	}
}

// A loadable is an unwind table in a BPF map that no program uses yet.
type loadable struct {
	content filememo.Sum // zero for a table that is not remembered
	*table
	inner   *ebpf.Map
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
	numbers, err := t.rules.acquire(l.rules)
	if err != nil {
		return nil, err
	}
	if l.inner, err = t.newInner(l.count); err == nil {
		w := arrayWindows{array: l.inner}
		l.perPage, err = l.write(w.next, numbers)
		err = errors.Join(err, w.close())
	}
	if err != nil {
		t.drop(l)
		return nil, fmt.Errorf("write unwind table: %w", err)
	}
	l.entries = nil // they refer to everything that was decoded
	return l, nil
}

// drop releases a table that no program uses.
func (t *tables) drop(l *loadable) {
	if l.inner != nil {
		l.inner.Close()
	}
	if l.count > 0 {
		t.rules.release(l.rules)
	}
}

// newInner makes a map for count entries.
func (t *tables) newInner(count int) (*ebpf.Map, error) {
	spec := t.kernel.table.Copy()
	spec.Name = "unwind_table"
	spec.MaxEntries = uint32(count)
	return ebpf.NewMap(spec)
}

// arrayWindows map the memory of an array, because to write it element by element would take the
// kernel longer than the analysis itself. They map one piece at a time: mapped memory counts as the
// tracer's own, and a large table has 24 MiB.
type arrayWindows struct {
	array  *ebpf.Map
	memory []byte
	end    int64 // in the array, in bytes
}

// windowSize is in bytes, and a multiple of the size of a page.
const windowSize = 256 << 10

// next unmaps the memory that it returned last, and maps the next piece. After the last one it returns
// none.
func (w *arrayWindows) next() ([]byte, error) {
	if err := w.close(); err != nil {
		return nil, err
	}
	size := min(windowSize, int64(w.array.MaxEntries())*stride-w.end)
	if size <= 0 {
		return nil, nil
	}
	memory, err := unix.Mmap(w.array.FD(), w.end, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	w.memory, w.end = memory, w.end+size
	return memory, err
}

func (w *arrayWindows) close() error {
	if w.memory == nil {
		return nil
	}
	err := unix.Munmap(w.memory)
	w.memory = nil
	return err
}

// intervals returns a stand-in for the table. The unwinder's Go side makes one entry of it,
// and as many pages as the table has.
func (l *loadable) intervals() *sdtypes.IntervalData {
	if l.count == 0 {
		return &sdtypes.IntervalData{}
	}
	all := sdtypes.StackDeltaArray{{Info: sdtypes.UnwindInfoInvalid}}
	return &sdtypes.IntervalData{NumDeltas: 1, Blocks: []*sdtypes.BasicBlock{{Start: l.start, End: l.end, Deltas: all}}}
}

// UpdateExeIDToStackDeltas implements ebpfapi.EbpfHandler: it loads the table that was
// offered for an executable, or else the unwinder's own (the vdso's on arm64), and returns
// which map has it: each stands for tablesMap. t.loading is done when the kernel can use it.
func (t *tables) UpdateExeIDToStackDeltas(file host.FileID, deltas []ebpfapi.StackDeltaEBPF) (uint16, error) {
	l := t.offered
	if l == nil || l.count == 0 {
		var err error
		if l, err = t.fromDeltas(deltas); err != nil {
			return 0, err
		}
	}
	t.loading.Go(func() error {
		defer l.inner.Close()
		// The kernel waits for an RCU grace period here, tens of milliseconds.
		if err := t.kernel.maps[tablesMap].Put(uint64(file), l.inner); err != nil {
			return fmt.Errorf("add unwind table: %w", err)
		}
		return nil
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loaded[file] = l
	t.known[l.content]++
	return support.StackDeltaBucketSmallest, nil
}

// fromDeltas makes a table of entries whose rules the unwinder has numbered. All lie in one page of
// the kernel side's, as the vdso does.
func (t *tables) fromDeltas(deltas []ebpfapi.StackDeltaEBPF) (*loadable, error) {
	e := &encoder{numbers: make(map[sdtypes.UnwindInfo]int)}
	for _, d := range deltas {
		rule, known := t.own[d.UnwindInfo]
		if !known {
			rule = sdtypes.UnwindInfo{Flags: support.UnwindFlagCommand, Param: int32(d.UnwindInfo &^ support.DeltaCommandFlag)}
		}
		e.add(uint64(d.AddressLow), e.number(rule))
	}
	e.end = e.at
	return t.prepare(filememo.Sum{}, e.encode())
}

// UpdateStackDeltaPages implements ebpfapi.EbpfHandler: it passes on the pages of the table
// that was loaded last.
func (t *tables) UpdateStackDeltaPages(file host.FileID, perPage []uint16, size uint16, first uint64) error {
	if l := t.offered; l != nil && l.count > 0 {
		perPage = l.perPage
	}
	return t.EbpfHandler.UpdateStackDeltaPages(file, perPage, size, first)
}

// UpdateUnwindInfo implements ebpfapi.EbpfHandler: the unwinder gives a rule a number.
func (t *tables) UpdateUnwindInfo(index uint16, info sdtypes.UnwindInfo) error {
	t.own[index] = info
	return nil
}

// has reports whether a table of this content is loaded.
func (t *tables) has(content filememo.Sum) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.known[content] > 0
}

// DeleteExeIDToStackDeltas implements ebpfapi.EbpfHandler.
func (t *tables) DeleteExeIDToStackDeltas(file host.FileID, _ uint16) error {
	t.mu.Lock()
	if l := t.loaded[file]; l != nil {
		delete(t.loaded, file)
		if t.known[l.content]--; t.known[l.content] == 0 {
			delete(t.known, l.content)
		}
		t.rules.release(l.rules)
	}
	t.mu.Unlock()
	return t.kernel.maps[tablesMap].Delete(uint64(file))
}
