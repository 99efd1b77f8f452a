package unwind

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/ebpf-profiler/host"
	"go.opentelemetry.io/ebpf-profiler/interpreter/interpreterconfig"
	"go.opentelemetry.io/ebpf-profiler/libpf/pfelf"
	"go.opentelemetry.io/ebpf-profiler/nativeunwind/elfunwindinfo"
	sdtypes "go.opentelemetry.io/ebpf-profiler/nativeunwind/stackdeltatypes"
	"go.opentelemetry.io/ebpf-profiler/processmanager/ebpfapi"
	"go.opentelemetry.io/ebpf-profiler/processmanager/execinfomanager"
	"go.opentelemetry.io/ebpf-profiler/support"
)

// readTable reads the unwind table of an ELF file in one part, and encodes it.
func readTable(r io.ReaderAt) ([]byte, error) {
	parts, err := readParts(r)
	if err != nil {
		return nil, err
	}
	return encodeTable(parts...)
}

// written is what the unwinder's own Go side writes to its maps for an executable.
type written struct {
	ebpfapi.EbpfHandler
	rules  map[uint16]sdtypes.UnwindInfo
	deltas []ebpfapi.StackDeltaEBPF
	pages  []uint16
	first  uint64
}

func (w *written) UpdateUnwindInfo(i uint16, info sdtypes.UnwindInfo) error {
	w.rules[i] = info
	return nil
}

func (w *written) UpdateExeIDToStackDeltas(_ host.FileID, deltas []ebpfapi.StackDeltaEBPF) (uint16, error) {
	w.deltas = deltas
	return 1, nil
}

func (w *written) UpdateStackDeltaPages(_ host.FileID, pages []uint16, _ uint16, first uint64) error {
	w.pages, w.first = pages, first
	return nil
}

// A table, encoded and written, is what the unwinder's own Go side makes of the same
// file: of the largest libraries here, and of programs.
func TestTableIsTheUnwinders(t *testing.T) {
	for _, path := range largeLibraries(t) {
		t.Run(filepath.Base(path), func(t *testing.T) {
			f, err := os.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			encoded, err := readTable(f)
			if err != nil {
				t.Skip(err)
			}
			w := &written{rules: map[uint16]sdtypes.UnwindInfo{}}
			manager, err := execinfomanager.NewExecutableInfoManager(elfunwindinfo.NewStackDeltaProvider(), w, interpreterconfig.NoInterpreters())
			if err != nil {
				t.Fatal(err)
			}
			ref := pfelf.NewReference(path, pfelf.SystemOpener)
			defer ref.Close()
			if _, err := manager.AddOrIncRef(1, ref); err != nil {
				t.Fatal(err)
			}
			compare(t, encoded, w)
			t.Logf("%d entries in %d bytes, %d rules", len(w.deltas), len(encoded), len(w.rules))
		})
	}
}

// largeLibraries are some of the largest files of code here, programs of Go and this
// process's own libraries among them.
func largeLibraries(t testing.TB) (paths []string) {
	size := map[string]int64{}
	for _, pattern := range []string{"/usr/lib/x86_64-linux-gnu/*.so*", "/usr/lib/aarch64-linux-gnu/*.so*", "/usr/bin/*"} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			if info, err := os.Lstat(name); err == nil && info.Mode().IsRegular() {
				size[name] = info.Size()
			}
		}
	}
	paths = slices.SortedFunc(maps.Keys(size), func(a, b string) int { return int(size[b] - size[a]) })
	paths = slices.DeleteFunc(paths, func(p string) bool { return strings.Contains(p, "icudata") })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	most := 25
	if testing.Short() {
		most = 5
	}
	return append(paths[:min(most, len(paths))], self)
}

// once returns memory, and then none.
func once(memory []byte) func() ([]byte, error) {
	return func() (m []byte, _ error) {
		m, memory = memory, nil
		return m, nil
	}
}

func compare(t *testing.T, encoded []byte, w *written) {
	t.Helper()
	table, err := decodeTable(encoded)
	if err != nil {
		t.Fatal(err)
	}
	numbers := make([]uint16, len(table.rules))
	for i := range numbers {
		numbers[i] = uint16(i)
	}
	memory := make([]byte, stride*table.count)
	pages, err := table.write(once(memory), numbers)
	if err != nil {
		t.Fatal(err)
	}
	if len(w.deltas) != table.count || !slices.Equal(pages, w.pages) || table.start&^support.StackDeltaPageMask != w.first {
		t.Fatalf("%d entries in %d pages from %#x, want %d in %d from %#x",
			table.count, len(pages), table.start&^support.StackDeltaPageMask, len(w.deltas), len(w.pages), w.first)
	}
	for i, d := range w.deltas {
		low := binary.NativeEndian.Uint16(memory[i*stride:])
		got := table.rules[binary.NativeEndian.Uint16(memory[i*stride+2:])]
		want, ok := w.rules[d.UnwindInfo]
		if d.UnwindInfo&support.DeltaCommandFlag != 0 {
			want, ok = sdtypes.UnwindInfo{Flags: support.UnwindFlagCommand, Param: int32(d.UnwindInfo &^ support.DeltaCommandFlag)}, true
		}
		if !ok || low != d.AddressLow || got != want {
			t.Fatalf("entry %d: %#x %+v, want %#x %+v", i, low, got, d.AddressLow, want)
		}
	}
}

// The version in the kind of what is remembered is that of the module: another one
// may make another table of the same file.
func TestProfilerVersion(t *testing.T) {
	b, err := os.ReadFile("../../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(b, []byte("go.opentelemetry.io/ebpf-profiler "+profilerVersion+"\n")) {
		t.Errorf("go.mod wants another version of the unwinder than %s", profilerVersion)
	}
}

// A block is code of a hostile file, by address.
func block(start, end uint64, deltas ...sdtypes.StackDelta) *sdtypes.BasicBlock {
	return &sdtypes.BasicBlock{Start: start, End: end, Deltas: deltas}
}

// What no compiler makes gives a table of its own, or none, and no panic.
func TestHostileIntervals(t *testing.T) {
	signal := sdtypes.StackDelta{Info: sdtypes.UnwindInfoSignal}
	frame := func(offset uint32, param int32) sdtypes.StackDelta {
		return sdtypes.StackDelta{Offset: offset, Info: sdtypes.UnwindInfo{BaseReg: 7, Param: param}}
	}
	many := make([]sdtypes.StackDelta, maxRules+1)
	for i := range many {
		many[i] = frame(uint32(i*4), int32(i*16))
	}
	for name, c := range map[string]struct {
		blocks []*sdtypes.BasicBlock
		fails  bool
	}{
		"none":                            {nil, false},
		"a signal's at a page's start":    {[]*sdtypes.BasicBlock{block(0x10000, 0x10010, signal)}, false},
		"a signal's at address 0":         {[]*sdtypes.BasicBlock{block(0, 0x10, signal)}, false},
		"rules beyond the code's end":     {[]*sdtypes.BasicBlock{block(0x1000, 0x1010, frame(0, 8), frame(1<<31, 24))}, false},
		"code that ends before it begins": {[]*sdtypes.BasicBlock{block(0x10000000, 0x10, frame(0, 8))}, false},
		"code in one place":               {[]*sdtypes.BasicBlock{block(0x1000, 0x3000, frame(0, 8), frame(0x1000, 24)), block(0x1000, 0x3000, frame(0, 40))}, false},
		"all of memory":                   {[]*sdtypes.BasicBlock{block(0, 1<<63, frame(0, 8))}, true},
		"two ends of memory":              {[]*sdtypes.BasicBlock{block(0x1000, 0x2000, frame(0, 8)), block(1<<62, 1<<62+10, frame(0, 8))}, true},
		"too many rules":                  {[]*sdtypes.BasicBlock{block(0, 1<<20, many...)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			encoded, err := encodeBlocks(c.blocks...)
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			if err != nil {
				return
			}
			table, err := decodeTable(encoded)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := table.write(once(make([]byte, stride*table.count)), make([]uint16, len(table.rules))); err != nil {
				t.Error(err)
			}
		})
	}
}

func encodeBlocks(blocks ...*sdtypes.BasicBlock) ([]byte, error) {
	whole, err := blocksOf(&sdtypes.IntervalData{Blocks: blocks})
	if err != nil {
		return nil, err
	}
	return encodeTable(whole)
}

// A file for a machine that the unwinder does not know makes it panic.
func TestUnknownMachine(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	binary.LittleEndian.PutUint16(b[18:], uint16(elf.EM_68K))
	if _, err := readTable(bytes.NewReader(b)); err == nil {
		t.Error("no error")
	}
}

func FuzzTable(f *testing.F) {
	self, err := os.Executable()
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range []string{self, "/bin/true"} {
		if r, err := os.Open(path); err == nil {
			if encoded, err := readTable(r); err == nil && len(encoded) < 1<<16 {
				f.Add(encoded)
			}
			r.Close()
		}
	}
	small, err := encodeBlocks(block(0x1000, 0x30000, sdtypes.StackDelta{Offset: 0x100}, sdtypes.StackDelta{Offset: 0x20000, Info: sdtypes.UnwindInfoStop}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(small)
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := decodeTable(b)
		if err != nil {
			return
		}
		pages, err := table.write(once(make([]byte, stride*table.count)), make([]uint16, len(table.rules)))
		if err != nil {
			return
		}
		total := 0
		for _, n := range pages {
			total += int(n)
		}
		if total != table.count {
			t.Errorf("%d entries in pages, %d in all", total, table.count)
		}
	})
}

func BenchmarkTable(b *testing.B) {
	path := largeLibraries(b)[0]
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	var encoded []byte
	b.Run("read", func(b *testing.B) {
		for b.Loop() {
			if encoded, err = readTable(f); err != nil {
				b.Fatal(err)
			}
		}
	})
	table, err := decodeTable(encoded)
	if err != nil {
		b.Fatal(err)
	}
	b.Logf("%s: %d entries in %d bytes", filepath.Base(path), table.count, len(encoded))
	memory, numbers := make([]byte, stride*table.count), make([]uint16, len(table.rules))
	b.Run("write", func(b *testing.B) {
		for b.Loop() {
			if table, err = decodeTable(encoded); err != nil {
				b.Fatal(err)
			}
			if _, err := table.write(once(memory), numbers); err != nil {
				b.Fatal(err)
			}
		}
	})
}
