package heap

import (
	"context"
	"encoding/binary"
	"io"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/heap/holder"
	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// An image is memory of some pages.
type image map[uint64]*[pageSize]byte

func (m image) ReadAt(to []byte, address uint64) (n int, err error) {
	for n < len(to) {
		page, ok := m[(address+uint64(n))/pageSize]
		if !ok {
			return n, io.EOF
		}
		n += copy(to[n:], page[(address+uint64(n))%pageSize:])
	}
	return n, nil
}

// put writes words at an address.
func (m image) put(address uint64, words ...uint64) {
	for i, w := range words {
		at := address + 8*uint64(i)
		page, ok := m[at/pageSize]
		if !ok {
			page = new([pageSize]byte)
			m[at/pageSize] = page
		}
		binary.LittleEndian.PutUint64(page[at%pageSize:], w)
	}
}

// A recorder keeps the pages of a memory that were read.
type recorder struct {
	Memory
	pages image
}

func (m recorder) ReadAt(to []byte, address uint64) (int, error) {
	n, err := m.Memory.ReadAt(to, address)
	for at := 0; at+pageSize <= n; at += pageSize {
		m.pages[(address+uint64(at))/pageSize] = (*[pageSize]byte)(slices.Clone(to[at : at+pageSize]))
	}
	return n, err
}

// A shifting memory is another one each time that it is read.
type shifting struct {
	Memory
	random *rand.Rand
	rate   int // one word of so many is another
}

func (m shifting) ReadAt(to []byte, address uint64) (int, error) {
	n, err := m.Memory.ReadAt(to, address)
	for at := 0; at+8 <= n; at += 8 {
		if m.random.IntN(m.rate) == 0 {
			from := 8 * m.random.IntN(n/8)
			copy(to[at:at+8], to[from:from+8])
		}
	}
	return n, err
}

// hostileMemory bounds what a reading of a hostile heap allocates, in bytes.
const hostileMemory = 512 << 20

// bounded reads a hostile heap, and fails if that takes more memory than it may. The numbers
// of objects and bytes bound how long it takes: its time does not run out.
func bounded(t testing.TB, m Memory, where Runtime) *holder.Reading {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r, err := ReadMemory(context.Background(), m, where, Options{Keys: AllKeys, CPU: true, MaxObjects: 1 << 18, MaxBytes: 1 << 30, MaxTime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > hostileMemory {
		t.Errorf("it allocated %d bytes", n)
	}
	for _, s := range r.Storages {
		if len(s.Holder) > 4<<10 || len(s.Shape) > maxDims || len(s.More) > maxMore {
			t.Errorf("%d bytes of path, %d sizes, %d paths", len(s.Holder), len(s.Shape), len(s.More))
		}
	}
	if r.Refused != "" && (len(r.Storages) != 0 || len(r.Retainers) != 0) {
		t.Errorf("%s, and %d storages", r.Refused, len(r.Storages))
	}
	return r
}

// Where forged heaps have their parts.
const (
	forgedRuntime     = 0x10000
	forgedInterpreter = 0x20000
	forgedObjects     = 0x100000
	forgedTypes       = 0x800000
	forgedItems       = 0x900000
)

// forge returns a heap of CPython 3.12 that has one object of a type for each of the
// given words, which follow the object's head.
func forge(name string, flags uint64, objects ...[]uint64) image {
	l, m := layouts[12], image{}
	m.put(forgedRuntime+uint64(l.interpreters), forgedInterpreter)
	m.put(forgedInterpreter, 0)
	at := uint64(forgedInterpreter + l.generations)
	heads := []uint64{at, at + 24, at + 48, at + 80}
	for _, head := range heads[1:] {
		m.put(head, head, head)
	}
	m.put(forgedTypes+typeName, forgedTypes+2048)
	m.put(forgedTypes+typeBasic, 64)
	m.put(forgedTypes+typeFlags, flags)
	text := append([]byte(name), make([]byte, 16)...)
	for i := 0; i+8 <= len(text); i += 8 {
		m.put(forgedTypes+2048+uint64(i), word(text[i:]))
	}
	last := heads[0]
	for i, words := range objects {
		o := uint64(forgedObjects + 0x1000*i)
		m.put(last, o)
		m.put(o, heads[0], last)
		m.put(o+gcHead, append([]uint64{1, forgedTypes}, words...)...)
		last = o
	}
	return m
}

func TestForged(t *testing.T) {
	where := Runtime{Address: forgedRuntime, Minor: 12}
	nowhere := uint64(0xdead000)
	items := make([]uint64, 64)
	for i := range items {
		items[i] = forgedObjects + gcHead
	}
	for name, c := range map[string]struct {
		heap    image
		objects uint64
		loss    string // that it counts
	}{
		"a list of 2^40":              {forge("list", flagList, []uint64{1 << 40, forgedItems, 1 << 40}), 1, "heap_containers_forged"},
		"a list that ends nowhere":    {forge("list", flagList, []uint64{1 << 20, forgedItems, 1 << 20}), 1, "heap_containers_cut"},
		"a list of itself":            {forge("list", flagList, []uint64{64, forgedItems, 64}), 1, ""},
		"a negative tuple":            {forge("tuple", flagTuple, []uint64{1<<64 - 1}), 1, "heap_containers_forged"},
		"a set of 2^40":               {forge("set", 0, []uint64{1, 1, 1 << 40, forgedItems}), 1, "heap_containers_forged"},
		"a dictionary of 2^60":        {forge("dict", flagDict, []uint64{1, 0, forgedItems + 1024, 0}), 1, "heap_containers_forged"},
		"a dictionary with no keys":   {forge("dict", flagDict, []uint64{1, 0, nowhere, nowhere}), 1, ""},
		"a deque in a ring":           {forge("collections.deque", 0, []uint64{1 << 23, forgedItems + 2048, forgedItems + 2048, 0, 0}), 1, ""},
		"a cache in a ring":           {forge("functools._lru_cache_wrapper", 0, []uint64{0, forgedItems + 4096}), 1, ""},
		"a context of 2^40":           {forge("hamt_bitmap_node", 0, []uint64{1 << 40, 0, 0, 0, 0, 0, forgedObjects + gcHead}), 1, ""},
		"a local of itself":           {forge("_thread._local", 0, items[:6]), 1, ""},
		"a task of itself":            {forge("_asyncio.Task", 0, items[:6]), 1, ""},
		"a coroutine of 2^31 values":  {forge("coroutine", 0, slices.Repeat([]uint64{1<<31 - 1}, 16)), 1, ""},
		"a type that is its own base": {forge("x", flagHeapType, nil), 1, ""},
		"a name without an end":       {forge("a name that is not at all as short as those of types are, which is longer than what is read of one, and so it ends when enough was read of it, as it must be, whatever comes after this, which nobody reads any more", 0, nil), 0, "heap_objects_gone"},
	} {
		t.Run(name, func(t *testing.T) {
			m := c.heap
			m.put(forgedItems, items...)
			m.put(forgedItems+1024, 0, 0x02_10_08, 0, 1<<60, 0)         // keys of 2^60 entries
			m.put(forgedItems+2048, forgedItems+2048, items[0])         // a block of a deque
			m.put(forgedItems+2048+65*8, forgedItems+2048)              // and its next one
			m.put(forgedItems+4096, 0, 0, 0, forgedItems+4096, 0, 0, 0) // a link
			m.put(forgedTypes+typeBase, forgedTypes)
			m.put(forgedTypes+typeMRO, forgedItems)
			r := bounded(t, m, where)
			if r.Objects != c.objects {
				t.Errorf("%d objects; %s", r.Objects, r.Refused)
			}
			i := slices.IndexFunc(r.Loss, func(l loss.Counter) bool { return l.Name == c.loss })
			if c.loss != "" && (i < 0 || r.Loss[i].Value == 0) {
				t.Errorf("%v", r.Loss)
			}
		})
	}
}

// A list of the collector that leads into another, and one that never ends.
func TestForgedLists(t *testing.T) {
	m := forge("list", flagList, []uint64{0, 0, 0}, []uint64{0, 0, 0})
	m.put(forgedObjects+0x1000, forgedObjects) // never back to the head
	if r := bounded(t, m, Runtime{Address: forgedRuntime, Minor: 12}); r.Objects != 2 || r.Loss[listsCut].Value == 0 {
		t.Errorf("%d objects, %v", r.Objects, r.Loss)
	}
	m = forge("list", flagList, []uint64{0, 0, 0})
	m.put(forgedObjects, 0xdead000)
	if r := bounded(t, m, Runtime{Address: forgedRuntime, Minor: 12}); r.Objects != 1 || r.Loss[listsCut].Value == 0 {
		t.Errorf("%d objects, %v", r.Objects, r.Loss)
	}
}

func TestRefused(t *testing.T) {
	for minor, why := range map[int]string{
		7:  "heaps of CPython 3.7 are not known; those of 3.8 to 3.14 are",
		15: "heaps of CPython 3.15 are not known; those of 3.8 to 3.14 are",
		0:  "this CPython does not say its version",
		12: "the process has no interpreter, or its memory may not be read",
		13: "the runtime's memory cannot be read",
	} {
		if r := bounded(t, image{}, Runtime{Address: forgedRuntime, Minor: minor}); r.Refused != why {
			t.Errorf("3.%d: %q", minor, r.Refused)
		}
	}
	m := image{}
	m.put(forgedRuntime, word([]byte("xdebugpy")), 0x030d00f0, 1)
	if r := bounded(t, m, Runtime{Address: forgedRuntime, Minor: 13}); r.Refused != "it is a free-threaded CPython" {
		t.Errorf("%q", r.Refused)
	}
	m.put(forgedRuntime+16, 0)
	if r := bounded(t, m, Runtime{Address: forgedRuntime, Minor: 13}); r.Refused != "the offsets that this CPython says make no sense" {
		t.Errorf("%q", r.Refused)
	}
}

// A real heap in which words are others than they were, and one that changes while it
// is read.
func TestChanging(t *testing.T) {
	m, where := record(t, buildStandin, "testdata/holders.py")
	r, err := ReadMemory(context.Background(), m, where, Options{Keys: AllKeys, CPU: true, MaxTime: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Storages) < 100 || len(r.Retainers) < 10 {
		t.Errorf("without a change %d storages, %d retainers; %s", len(r.Storages), len(r.Retainers), r.Refused)
	}
	random := rand.New(rand.NewPCG(1, 2))
	for rate := 16; rate <= 1<<20; rate *= 4 {
		bounded(t, shifting{m, random, rate}, where)
	}
	for _, program := range []string{"testdata/cupy_holders.py", "testdata/numba_holders.py"} {
		m, where := record(t, buildWords, program)
		for rate := 16; rate <= 1<<12; rate *= 4 {
			bounded(t, shifting{m, random, rate}, where)
		}
	}
}

// record returns what is read of a real program's heap.
func record(t testing.TB, build func(testing.TB, string) string, program string) (image, Runtime) {
	t.Helper()
	python := installed(t)
	minor := slices.Max(slices.Collect(maps.Keys(python)))
	p := start(t, python[minor], []string{"PYTHONPATH=" + build(t, python[minor])}, program)
	where, err := FindRuntime(p.pid)
	if err != nil {
		t.Fatal(err)
	}
	m := recorder{processMemory(p.pid), image{}}
	if _, err := ReadMemory(context.Background(), m, where, Options{Keys: AllKeys, CPU: true, MaxTime: time.Minute}); err != nil {
		t.Fatal(err)
	}
	return m.pages, where
}

// Words of a heap are others: of a real one, and of one that is all forged.
func FuzzHeap(f *testing.F) {
	real, where := record(f, buildStandin, "testdata/holders.py")
	pages := slices.Sorted(maps.Keys(real))
	f.Add(uint64(1), uint16(8), []byte{1, 2, 3, 4})
	f.Add(uint64(2), uint16(1000), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
	f.Fuzz(func(t *testing.T, seed uint64, changes uint16, values []byte) {
		random := rand.New(rand.NewPCG(seed, 0))
		m := maps.Clone(real)
		for range min(int(changes), 2000) {
			page := pages[random.IntN(len(pages))]
			copied := *m[page]
			at := 8 * random.IntN(pageSize/8)
			var w uint64
			switch random.IntN(3) {
			case 0: // a pointer to anywhere
				w = pages[random.IntN(len(pages))]*pageSize + 8*uint64(random.IntN(pageSize/8))
			case 1:
				w = random.Uint64() >> random.IntN(64)
			default:
				var b [8]byte
				if len(values) > 0 {
					copy(b[:], values[random.IntN(len(values)):])
				}
				w = binary.LittleEndian.Uint64(b[:])
			}
			binary.LittleEndian.PutUint64(copied[at:], w)
			m[page] = &copied
		}
		bounded(t, m, where)
	})
}

// What is said to be at one address is of one kind: an index of one list is none of another.
func TestOneKindAtAnAddress(t *testing.T) {
	r := &references{extraAt: map[uint64]vertex{}, lost: loss.New(losses)}
	if v := r.addExtra(extraImpl, 64); v != 0 || r.addExtra(extraImpl, 64) != v {
		t.Errorf("the first is vertex %d", v)
	}
	if v, lost := r.addExtra(extraStorage, 64), r.lost.Counters()[tensorsUnfit].Value; v != noVertex || lost != 1 {
		t.Errorf("vertex %d for another kind, %d are counted", v, lost)
	}
}
