package ring

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A kernel writes records into memory that looks like a ring buffer.
type kernel struct {
	*Reader
	memory []byte // the two pages of positions, and the contents twice
	at     uint64
}

func newKernel(t *testing.T, size int) *kernel {
	t.Helper()
	fd, err := unix.MemfdCreate("ring", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(2*page+2*size)); err != nil {
		t.Fatal(err)
	}
	k := &kernel{Reader: &Reader{fd: fd, size: uint64(size)}}
	if k.memory, err = unix.Mmap(fd, 0, 2*page+2*size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(k.memory) })
	if err := k.mapPositions(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.unmap)
	return k
}

// put writes a byte where both copies of the contents have it.
func (k *kernel) put(at uint64, b byte) {
	data := k.memory[2*os.Getpagesize():]
	data[at&(k.size-1)], data[k.size+at&(k.size-1)] = b, b
}

func (k *kernel) write(record []byte, flags uint32) {
	head := binary.NativeEndian.AppendUint32(nil, uint32(len(record))|flags)
	for i, b := range append(append(head, 0, 0, 0, 0), record...) {
		k.put(k.at+uint64(i), b)
	}
	k.at += uint64(headerSize+len(record)+7) &^ 7
	atomic.StoreUint64(position(k.memory[os.Getpagesize():]), k.at)
}

// Each record is read as it was written, wherever the end of the memory and of what is mapped
// lies, and those that the kernel side discarded are left out.
func TestRead(t *testing.T) {
	k := newKernel(t, 4<<20)
	var buf []byte
	for i := range 20_000 {
		want := slices.Repeat([]byte{byte(i), byte(i >> 8)}, i*7%2000)
		if i%1000 == 999 {
			want = slices.Repeat([]byte{byte(i >> 8)}, windowSize+i)
		}
		if i%3 == 0 {
			k.write(want[:len(want)/2], discarded)
		}
		k.write(want, 0)
		got, ok, err := k.Read(buf)
		if err != nil || !ok || !slices.Equal(got, want) {
			t.Fatalf("record %d: %d bytes, %v, %v, want %d", i, len(got), ok, err, len(want))
		}
		buf = got
		if !k.Empty() {
			t.Fatal("not all is read")
		}
	}
	if k.at < 10*k.size {
		t.Errorf("%d bytes were written", k.at)
	}
	k.write(nil, discarded)
	if got, ok, err := k.Read(nil); ok || err != nil {
		t.Errorf("an empty ring buffer has %q, %v", got, err)
	}
}

// A record that is being written is waited for.
func TestReadBusy(t *testing.T) {
	k := newKernel(t, os.Getpagesize())
	k.write([]byte("late"), busy)
	go func() {
		time.Sleep(time.Millisecond)
		atomic.StoreUint32((*uint32)(unsafe.Pointer(&k.memory[2*os.Getpagesize()])), 4)
	}()
	if got, ok, err := k.Read(nil); !ok || err != nil || string(got) != "late" {
		t.Errorf("%q, %v, %v", got, ok, err)
	}
}

// A length that cannot be is an error.
func TestReadCut(t *testing.T) {
	for _, length := range []uint32{9, 1 << 20, discarded - 1} {
		k := newKernel(t, os.Getpagesize())
		k.write(make([]byte, 8), 0)
		binary.NativeEndian.PutUint32(k.memory[2*os.Getpagesize():], length)
		if _, ok, err := k.Read(nil); ok || !errors.Is(err, errCut) {
			t.Errorf("length %d: %v", length, err)
		}
	}
}

// Whoever waits is told of a wake, of the end, and of what is there already.
func TestWait(t *testing.T) {
	in, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer out.Close()
	r := new(Reader)
	if err := r.open(int(in.Fd())); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(time.Millisecond, nil); err != nil {
		t.Error(err)
	}
	if err := r.Wait(0, func() bool { return true }); err != nil {
		t.Error(err)
	}
	for _, end := range []func(){r.Wake, func() { out.WriteString("x") }} {
		time.AfterFunc(5*time.Millisecond, end)
		if err := r.Wait(0, nil); err != nil {
			t.Error(err)
		}
	}
	time.AfterFunc(5*time.Millisecond, func() { r.Close() })
	if err := r.Wait(0, nil); err == nil {
		t.Error("nobody waits for what is closed")
	}
	if _, _, err := r.Read(nil); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if err := r.Close(); err != nil || !r.Empty() {
		t.Error(err)
	}
}
