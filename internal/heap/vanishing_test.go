package heap

import (
	"context"
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/loss"
)

// A vanishing memory has other words at some places each time that it is read.
type vanishing struct {
	image
	words map[uint64]bool // addresses
	reads *uint64
}

func (m vanishing) ReadAt(to []byte, address uint64) (int, error) {
	n, err := m.image.ReadAt(to, address)
	for at := (8 - address%8) % 8; at+8 <= uint64(n); at += 8 {
		if m.words[address+at] {
			*m.reads++
			binary.LittleEndian.PutUint64(to[at:], *m.reads*4096)
		}
	}
	return n, err
}

// tensorsOf finds the tensors of a heap.
func tensorsOf(t *testing.T, m Memory, where Runtime) (*objectReader, []instance) {
	t.Helper()
	lay := layouts[where.Minor]
	c := newCache(m, defaultBytes, time.Now().Add(time.Hour))
	if err := c.open(); err != nil {
		t.Fatal(err)
	}
	r := newObjectReader(c, &lay, where.Address)
	t.Cleanup(func() {
		r.arena.release()
		c.release()
	})
	if lay.minor >= 13 {
		if err := lay.adopt(c, where.Address); err != nil {
			t.Fatal(err)
		}
	}
	lists := listReader{objectReader: r, interpreters: r.interpreters(), most: defaultObjects}
	found := lists.find()
	c.shrink(edgeSlots)
	o := r.newObjects(found)
	return r, r.ofShape(&o, shapeTensor)
}

// A size that is another one when it is read again is of memory that was freed: it is in no total.
func TestVanishingStorages(t *testing.T) {
	pages, where := record(t, buildStandin, "testdata/holders.py")
	r, tensors := tensorsOf(t, pages, where)
	torch, why := r.findTorch(tensors)
	if why != "" {
		t.Fatal(why)
	}
	opts := Options{Keys: AllKeys, CPU: true, MaxTime: time.Minute}
	sizes := map[uint64]uint64{}
	whole, err := ReadMemory(context.Background(), pages, where, opts)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range whole.Storages {
		sizes[s.Address] = s.Bytes
	}
	changing := vanishing{pages, map[uint64]bool{}, new(uint64)}
	changed := map[uint64]bool{}
	for _, x := range tensors[:len(tensors)/6] {
		storage := r.mem.word(r.mem.word(x.address+uint64(torch.impl)) + uint64(torch.storage))
		changing.words[storage+uint64(torch.bytes)] = true
		changed[r.mem.word(storage+uint64(torch.data))] = true
	}
	*changing.reads = 1 << 20
	now, err := ReadMemory(context.Background(), changing, where, opts)
	if err != nil {
		t.Fatal(err)
	}
	if now.Refused != "" {
		t.Fatal(now.Refused)
	}
	for _, s := range now.Storages {
		if s.Bytes != sizes[s.Address] {
			t.Errorf("%s has %d bytes, want %d", s.Holder, s.Bytes, sizes[s.Address])
		}
		delete(sizes, s.Address)
	}
	for at := range sizes {
		if !changed[at] {
			t.Errorf("the storage at %#x did not change, and is not there", at)
		}
	}
	if i := slices.IndexFunc(now.Loss, func(c loss.Counter) bool { return c.Name == "heap_tensors_unfit" }); now.Loss[i].Value == 0 {
		t.Error("nothing was counted")
	}
}

// Tensors that are gone when they are read, and those that change, neither prove nor refute how
// PyTorch lays them out. The others do.
func TestLayoutOfVanishing(t *testing.T) {
	const refcount, implAt = 0, 16
	pages, where := record(t, buildStandin, "testdata/holders.py")
	r, tensors := tensorsOf(t, pages, where)
	want, why := r.findTorch(tensors)
	if why != "" {
		t.Fatal(why)
	}
	want.required = 0 // few leaves are left to find it by
	same := func(got *torchLayout) bool {
		if got != nil {
			got.required = 0
		}
		return got != nil && *got == *want
	}
	changing := vanishing{pages, map[uint64]bool{}, new(uint64)}
	for i, x := range tensors {
		if at := x.address; i%20 != 0 {
			changing.words[at+implAt] = true
		}
	}
	r.mem.memory = changing
	if got, why := r.findTorch(tensors); !same(got) {
		t.Errorf("most tensors change: %+v, want %+v; %s", got, want, why)
	}
	gone := image{}
	for number, page := range pages {
		copied := *page
		gone[number] = &copied
	}
	for i, x := range tensors {
		if i%20 != 0 {
			gone.put(x.address+refcount, 0)
			gone.put(x.address+implAt, x.address) // whatever is there now
		}
	}
	r.mem.memory = gone
	if got, why := r.findTorch(tensors); !same(got) {
		t.Errorf("most tensors are gone: %+v, want %+v; %s", got, want, why)
	}
	for _, x := range tensors {
		pages.put(x.address+implAt, x.address)
	}
	r.mem.memory = pages
	if got, why := r.findTorch(tensors); why == "" {
		t.Errorf("no tensor has its TensorImpl, and the layout is %+v", got)
	}
}
