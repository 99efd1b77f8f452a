package heap

import (
	"bufio"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// An allocating program stands in for PyTorch's allocator.
type allocating struct {
	t       testing.TB
	in      io.WriteCloser
	out     *bufio.Scanner
	pid     int
	pointer uint64
	code    uint64               // of the function that returns workspaces
	says    map[int32]holder.Sum // by GPU, as of the last command; without Free
}

func startAllocating(t testing.TB, args ...string) *allocating {
	t.Helper()
	program := filepath.Join(t.TempDir(), "allocator")
	run(t, "g++", "-std=c++17", "-O1", "-Wall", "-Werror", "-o", program, "testdata/allocator.cc")
	cmd := exec.Command(program, args...)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	a := &allocating{t: t, in: in, out: bufio.NewScanner(out), pid: cmd.Process.Pid}
	a.out.Scan()
	if _, err := fmt.Sscanf(a.out.Text(), "0x%x 0x%x", &a.pointer, &a.code); err != nil {
		t.Fatal(err)
	}
	return a
}

// do has the program follow commands, one a line.
func (a *allocating) do(commands ...string) {
	a.t.Helper()
	for _, c := range commands {
		fmt.Fprintln(a.in, c)
		if !a.out.Scan() {
			a.t.Fatalf("the program ended at %q", c)
		}
	}
	a.says = map[int32]holder.Sum{}
	f := strings.Fields(a.out.Text())
	for ; len(f) >= 7; f = f[7:] {
		var device int32
		var s holder.Sum
		if _, err := fmt.Sscan(strings.Join(f[:7], " "), &device, &s.Blocks, &s.Segments, &s.Allocated, &s.Reserved, &s.Active, &s.Requested); err != nil {
			a.t.Fatal(err)
		}
		if s != (holder.Sum{}) {
			a.says[device] = s
		}
	}
}

func (a *allocating) read() ([]holder.Allocator, string) {
	a.t.Helper()
	return readImage(a.t, processMemory(a.pid), a.pointer)
}

// agrees reads the allocator, and compares the sums of blocks with what the program says.
func (a *allocating) agrees() []holder.Allocator {
	a.t.Helper()
	all, why := a.read()
	if why != "" {
		a.t.Fatal(why)
	}
	got := map[int32]holder.Sum{}
	for i := range all {
		if off := all[i].Off(); off != 0 {
			a.t.Errorf("GPU %d: %d bytes off its own statistics %+v: %+v", all[i].Device, off, all[i].Figures, all[i].Sum())
		}
		s := all[i].Sum()
		s.Free = 0
		got[all[i].Device] = s
	}
	if d := cmp.Diff(a.says, got); d != "" {
		a.t.Errorf("GPU: -says +read\n%s", d)
	}
	return all
}

func TestAllocator(t *testing.T) {
	a := startAllocating(t)
	if _, why := a.read(); why == "" {
		t.Error("an allocator without blocks was read")
	}
	a.do("new a 1000 0")
	a.agrees()
	a.do("new b 30000000 0", "new c 5000000 0", "new d 2000 1", "new e 5000000 0", "new f 6000000 0")
	a.agrees()
	a.do("free c", "free d") // GPU 1 has nothing but a free segment
	a.agrees()
	a.do("many l 9000 0") // more than there may be pools
	before := reservedOf(a.agrees()[0])
	a.do("new p 3000000 0 7", "new q 100 0 7")
	a.agrees()
	a.do("free p", "free q") // a private pool with nothing in use
	before["0.7"], before["0.7 small"] = 20, 2
	if d := cmp.Diff(before, reservedOf(a.agrees()[0])); d != "" {
		t.Errorf("MiB of pools (-want +read):\n%s", d)
	}
	a.do("wait b") // it is alone in its segment, and in no set
	all := a.agrees()
	var waiting []uint64
	for _, b := range all[0].Blocks {
		if b.State == holder.Waiting {
			waiting = append(waiting, b.Size)
		}
	}
	if len(waiting) != 1 || waiting[0] < 30000000 {
		t.Errorf("waiting: %d", waiting)
	}
	a.do("many m 20000 1")
	a.agrees()
	a.do("new r 2000000 0 8", "unmap r") // the end of its segment has no memory any more
	all, _ = a.read()
	before["0.8 expandable"] = 1
	if d := cmp.Diff(before, reservedOf(all[0])); d != "" {
		t.Errorf("MiB of pools (-want +read):\n%s", d)
	}
}

// Where few of the listed blocks say their address, their sums prove what they are, or nothing does.
func TestAllocatorDoubtful(t *testing.T) {
	a := startAllocating(t)
	a.do("new a 700000 0", "new b 30000000 0", "ghosts g 3")
	a.agrees()
	a.do("many m 300 1", "ghosts g 3000")
	a.agrees()
	a.do("forge a")
	if all, why := a.read(); !strings.Contains(why, "say their address") {
		t.Errorf("%d GPUs were read: %q", len(all), why)
	}
}

// Workspaces are those blocks that PyTorch's own table has, if it has nothing else.
func TestWorkspaces(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("the code that is read is of x86-64")
	}
	a := startAllocating(t)
	a.do("many m 50 0", "new a 8519680 0", "new b 8519680 0", "new c 8519680 0")
	read := func() (out []uint64) {
		t.Helper()
		mem := newCache(processMemory(a.pid), defaultBytes, time.Now().Add(defaultTime))
		if err := mem.open(); err != nil {
			t.Fatal(err)
		}
		defer mem.release()
		r := holder.Reading{Allocators: a.agrees()}
		addNameless(&r, sizesOf(r.Allocators))
		nameWorkspaces(mem, func() []uint64 { return []uint64{a.code} }, &r)
		for _, s := range r.Storages {
			if s.Holder == holder.Workspace {
				out = append(out, s.Bytes)
			}
		}
		return out
	}
	if got := read(); got != nil {
		t.Errorf("without workspaces: %d", got)
	}
	a.do("workspace a", "workspace c")
	if got, want := read(), []uint64{8519680, 8519680}; !slices.Equal(got, want) {
		t.Errorf("%d, want %d", got, want)
	}
	a.do("workspace x 4096") // which is no block
	if got := read(); got != nil {
		t.Errorf("of another table: %d", got)
	}
}

// What only C++ has in a private pool says of which sort the pool is.
func TestNamelessInPools(t *testing.T) {
	block := func(address uint64, pool holder.PoolID) holder.Block {
		return holder.Block{Address: address, Size: 512, Requested: 500, State: holder.Allocated, Private: pool}
	}
	r := holder.Reading{Allocators: []holder.Allocator{{Blocks: []holder.Block{
		block(1<<20, holder.PoolID{}), block(2<<20, holder.PoolID{First: 1}), block(3<<20, holder.PoolID{Second: 1}), block(4<<20, holder.UnknownPool)}}}}
	addNameless(&r, sizesOf(r.Allocators))
	for i, want := range []string{"", holder.NativeGraph, holder.NativePrivate, ""} {
		if s := &r.Storages[i]; s.Holder != want || !s.Native() {
			t.Errorf("%+v, want %q", s, want)
		}
	}
}

// reservedOf returns how many MiB are reserved by what sort of pool, and of segment.
func reservedOf(a holder.Allocator) map[string]uint64 {
	sums := map[string]uint64{}
	for _, b := range a.Blocks {
		name := b.Private.String()
		if b.Small {
			name += " small"
		}
		if b.Expandable {
			name += " expandable"
		}
		if b.State != holder.Unmapped {
			sums[strings.TrimSpace(name)] += b.Size
		}
	}
	for name := range sums {
		sums[name] >>= 20
	}
	return sums
}

// What changes at full speed is off by little, and no two blocks overlap.
func TestAllocatorChanging(t *testing.T) {
	a := startAllocating(t)
	a.do("many m 20000 0", "free m7", "free m9", "free m2000", "free m2001")
	fmt.Fprintln(a.in, "churn x")
	a.out.Scan()
	all, why := a.read()
	if why != "" {
		t.Fatal(why)
	}
	for _, x := range all {
		s := x.Sum()
		if x.Figures != nil && x.Off() > s.Reserved/10 {
			t.Errorf("GPU %d: %d bytes off", x.Device, x.Off())
		}
		for i := 1; i < len(x.Blocks); i++ {
			if x.Blocks[i].Address < x.Blocks[i-1].Address+x.Blocks[i-1].Size {
				t.Fatal("blocks overlap")
			}
		}
	}
}

func TestAllocatorRefused(t *testing.T) {
	for args, want := range map[string]string{"async": "cudaMallocAsync", "unused": "has not used a GPU yet"} {
		if _, why := startAllocating(t, args).read(); !strings.Contains(why, want) {
			t.Errorf("%s: %q, want %q", args, why, want)
		}
	}
}

// recordedWords returns the memory that was read of a real process, PyTorch 2.11 on an H200, and the
// pointer to its allocator.
func recordedWords(t testing.TB, name string) (m image, pointer uint64) {
	t.Helper()
	f, err := os.Open("testdata/allocator_" + name + ".words.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	in := bufio.NewReader(z)
	next := func() uint64 {
		n, err := binary.ReadUvarint(in)
		if err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		return n
	}
	m, pointer = image{}, next()
	for at := uint64(0); ; {
		if _, err := in.Peek(1); err != nil {
			return m, pointer
		}
		at += 8 * next()
		m.put(at, next())
	}
}

func readImage(t testing.TB, m Memory, pointer uint64) ([]holder.Allocator, string) {
	t.Helper()
	return readCounting(t, m, pointer, loss.New(losses))
}

func readCounting(t testing.TB, m Memory, pointer uint64, lost *loss.Set) ([]holder.Allocator, string) {
	t.Helper()
	mem := newCache(m, defaultBytes, time.Now().Add(defaultTime))
	if err := mem.open(); err != nil {
		t.Fatal(err)
	}
	defer mem.release()
	return readAllocator(mem, &cppReader{mem: mem, vtables: map[uint64]string{}}, pointer, allocatorRounds, lost)
}

// The sums are what torch.cuda.memory_stats() and memory_snapshot() said in the process.
func TestAllocatorReal(t *testing.T) {
	pools := map[string]map[string]uint64{
		"native":     {"": 244, "small": 1262, "0.1": 40, "0.1 small": 2, "1.0": 32, "1.0 small": 2},
		"expandable": {"expandable": 220, "small expandable": 1210, "0.1 expandable": 40, "0.1 small expandable": 2, "1.0 expandable": 40, "1.0 small expandable": 2},
	}
	for name, want := range map[string]holder.Sum{
		"native":     {Blocks: 2051, Free: 1267, Segments: 646, Reserved: 1658847232, Allocated: 1063245824, Active: 1063245824, Requested: 1062741364},
		"expandable": {Blocks: 2051, Free: 1022, Segments: 7, Reserved: 1587544064, Allocated: 1063245824, Active: 1063245824, Requested: 1062741364},
	} {
		m, pointer := recordedWords(t, name)
		lost := loss.New(losses)
		all, why := readCounting(t, m, pointer, lost)
		if why != "" || len(all) != 1 {
			t.Fatalf("%s: %d GPUs: %s", name, len(all), why)
		}
		for _, l := range lost.Counters() {
			if l.Value != 0 {
				t.Errorf("%s: %d %s", name, l.Value, l.Help)
			}
		}
		if d := cmp.Diff(want, all[0].Sum()); d != "" {
			t.Errorf("%s: -PyTorch +read\n%s", name, d)
		}
		if off := all[0].Off(); off != 0 {
			t.Errorf("%s: %d bytes off PyTorch's statistics", name, off)
		}
		if d := cmp.Diff(pools[name], reservedOf(all[0])); d != "" {
			t.Errorf("%s: MiB of pools (-want +read):\n%s", name, d)
		}
	}
}

// A process whose allocator has no GPU yet may have any words where one is looked for.
func TestAllocatorWithoutGPU(t *testing.T) {
	m, pointer := recordedWords(t, "native")
	object := word(m[pointer/pageSize][pointer%pageSize:])
	const vector, somewhere = 8 * 2823, 0x10000 // where PyTorch 2.11 has the GPUs, and a chunk of memory
	m.put(object+vector, somewhere, somewhere+8, somewhere+8)
	m.put(somewhere, somewhere+64)
	m.put(somewhere+56, 0xf200000000001083)
	if all, why := readImage(t, m, pointer); why == "" {
		t.Errorf("read %+v", all)
	}
}

// Whatever the words say, a reading ends, within its bounds, and no two blocks overlap.
func TestAllocatorForged(t *testing.T) {
	real, pointer := recordedWords(t, "native")
	var pages []uint64
	for page := range real {
		pages = append(pages, page)
	}
	slices.Sort(pages)
	random := rand.New(rand.NewPCG(1, 2))
	var words []uint64 // that are not zero
	for _, page := range pages {
		for i := 0; i < pageSize; i += 8 {
			if word(real[page][i:]) != 0 {
				words = append(words, page*pageSize+uint64(i))
			}
		}
	}
	for range 40 {
		m := maps.Clone(real)
		for range 1 + random.IntN(200) {
			at := words[random.IntN(len(words))]
			page := *m[at/pageSize]
			m[at/pageSize] = &page
			v := words[random.IntN(len(words))] // another object's address
			switch random.IntN(4) {
			case 0:
				v = word(m[at/pageSize][at%pageSize:]) ^ 1<<random.IntN(64)
			case 1:
				v = []uint64{1<<40 - 1, 1<<63 | 0x1083, ^uint64(7)}[random.IntN(3)]
			case 2:
				v = word(m[words[0]/pageSize][words[0]%pageSize:])
			}
			m.put(at, v)
		}
		all, why := readImage(t, m, pointer)
		if why != "" {
			continue
		}
		for _, a := range all {
			for i := 1; i < len(a.Blocks); i++ {
				if a.Blocks[i].Address < a.Blocks[i-1].Address+a.Blocks[i-1].Size {
					t.Fatal("blocks overlap")
				}
			}
		}
	}
}

func FuzzAllocator(f *testing.F) {
	m, pointer := recordedWords(f, "native")
	object := word(m[pointer/pageSize][pointer%pageSize:])
	f.Add(object+8*544, uint64(0), uint64(1)<<40)
	f.Fuzz(func(t *testing.T, at, with, from uint64) {
		forged := maps.Clone(m)
		for _, x := range []uint64{at, from} {
			x &^= 7
			if data := forged[x/pageSize]; data != nil {
				page := *data
				forged[x/pageSize] = &page
				forged.put(x, with)
			}
		}
		readImage(t, forged, pointer)
	})
}
