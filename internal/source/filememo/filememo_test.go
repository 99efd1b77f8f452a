package filememo

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// content is a file of some blocks, the same for the same seed.
func content(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed)})
	_, _ = r.Read(b)
	return b
}

func fileOf(b []byte) File { return File{ReaderAt: bytes.NewReader(b), Size: int64(len(b))} }

// at is a derivation that reads n bytes at an offset, and counts how often it ran.
func at(off int64, n int, runs *int) func(io.ReaderAt) ([]byte, error) {
	return func(r io.ReaderAt) ([]byte, error) {
		*runs++
		b := make([]byte, n)
		if _, err := r.ReadAt(b, off); err != nil {
			return nil, err
		}
		return fmt.Appendf(nil, "%x", sha256.Sum256(b)), nil
	}
}

// stores are a memo of each kind, and how to open it once more.
func stores(t *testing.T) map[string]func() *Memo {
	dir := filepath.Join(t.TempDir(), "cache")
	memory := InMemory("test", 1<<20)
	return map[string]func() *Memo{
		"memory": func() *Memo { return memory },
		"directory": func() *Memo {
			m, err := Open(dir, "test", 8<<20)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { m.Close() })
			return m
		},
	}
}

// settle returns when what was derived is kept.
func settle(m *Memo) {
	if d, ok := m.store.(*directory); ok {
		d.pending.Wait()
	}
}

func TestDerive(t *testing.T) {
	for name, open := range stores(t) {
		t.Run(name, func(t *testing.T) {
			b := content(1, 5*blockSize+77)
			runs := 0
			derive := at(2*blockSize-3, 10, &runs)
			m := open()
			first, sum, err := m.Derive(fileOf(b), derive)
			settle(m)
			if err != nil || runs != 1 {
				t.Fatal(err, runs)
			}
			again, same, err := open().Derive(fileOf(b), derive)
			if err != nil || runs != 1 || !bytes.Equal(first, again) || sum != same {
				t.Fatalf("%v, %d runs, %q and %q", err, runs, first, again)
			}
			for _, l := range open().Loss() {
				if l.Value != 0 {
					t.Errorf("%s: %d", l.Name, l.Value)
				}
			}
		})
	}
}

// A file with the ends and the size of another, and other bytes where the value
// comes from, neither gets the other's value nor gives it its own.
func TestForgedName(t *testing.T) {
	for name, open := range stores(t) {
		t.Run(name, func(t *testing.T) {
			good := content(1, 5*blockSize)
			forged := bytes.Clone(good)
			forged[2*blockSize] ^= 1
			runs := 0
			derive := at(2*blockSize, 8, &runs)
			m := open()
			bad, badSum, _ := m.Derive(fileOf(forged), derive)
			settle(m)
			value, sum, err := m.Derive(fileOf(good), derive)
			settle(m)
			if err != nil || runs != 2 || bytes.Equal(bad, value) || sum == badSum {
				t.Fatalf("%v, %d runs", err, runs)
			}
			if back, _, _ := m.Derive(fileOf(forged), derive); !bytes.Equal(bad, back) {
				t.Error("the forged file gets the good one's value")
			}
		})
	}
}

// alternating is a file whose owner writes it between two reads: it shows good bytes
// at first and others after.
type alternating struct {
	good, evil []byte
	reads      map[int64]int
}

func (a *alternating) ReadAt(p []byte, off int64) (int, error) {
	a.reads[off]++
	if a.reads[off] > 1 {
		return bytes.NewReader(a.evil).ReadAt(p, off)
	}
	return bytes.NewReader(a.good).ReadAt(p, off)
}

// A file that changes while it is read does not make an entry that holds for the
// file that it was at first.
func TestChangingFile(t *testing.T) {
	good, evil := content(1, 5*blockSize), content(2, 5*blockSize)
	m := InMemory("test", 1<<20)
	twice := func(r io.ReaderAt) ([]byte, error) {
		b := make([]byte, 16)
		for range 2 { // what is read last counts
			if _, err := r.ReadAt(b, 2*blockSize); err != nil {
				return nil, err
			}
		}
		return b, nil
	}
	changing := &alternating{good, evil, map[int64]int{}}
	if _, _, err := m.Derive(File{ReaderAt: changing, Size: int64(len(good))}, twice); err != nil {
		t.Fatal(err)
	}
	value, _, err := m.Derive(fileOf(good), twice)
	if err != nil || !bytes.Equal(value, good[2*blockSize:][:16]) {
		t.Errorf("%x, %v", value, err)
	}
}

// unreadable is a file of which one block cannot be read.
type unreadable struct {
	io.ReaderAt
	block int64
}

func (u unreadable) ReadAt(p []byte, off int64) (int, error) {
	if off/blockSize == u.block {
		return 0, unix.EIO
	}
	return u.ReaderAt.ReadAt(p, off)
}

// A derivation may make the best of what it can read: that is nothing for a file
// which can be read.
func TestUnreadableBlock(t *testing.T) {
	b := content(1, 5*blockSize)
	best := func(r io.ReaderAt) ([]byte, error) {
		p := make([]byte, 4)
		if _, err := r.ReadAt(p, 2*blockSize); err != nil {
			return []byte("nothing"), nil
		}
		return p, nil
	}
	m := InMemory("test", 1<<20)
	f := fileOf(b)
	f.ReaderAt = unreadable{f.ReaderAt, 2}
	if _, _, err := m.Derive(f, best); !errors.Is(err, unix.EIO) {
		t.Error(err)
	}
	if value, _, err := m.Derive(fileOf(b), best); err != nil || !bytes.Equal(value, b[2*blockSize:][:4]) {
		t.Errorf("%q, %v", value, err)
	}
}

// Another owner's file has an entry of its own, whatever is in it.
func TestOwners(t *testing.T) {
	b := content(1, 5*blockSize)
	evil := bytes.Clone(b)
	evil[blockSize] ^= 1
	runs := 0
	derive := at(blockSize, 1, &runs)
	m := InMemory("test", 1<<20)
	for range 3 {
		for _, f := range []File{{bytes.NewReader(b), int64(len(b)), 0}, {bytes.NewReader(evil), int64(len(b)), 1000}} {
			if _, _, err := m.Derive(f, derive); err != nil {
				t.Fatal(err)
			}
		}
	}
	if runs != 2 {
		t.Errorf("derived %d times", runs)
	}
}

func TestErrorsAreNotRemembered(t *testing.T) {
	m := InMemory("test", 1<<20)
	f := fileOf(content(1, 100))
	if _, _, err := m.Derive(f, func(io.ReaderAt) ([]byte, error) { return nil, io.ErrNoProgress }); !errors.Is(err, io.ErrNoProgress) {
		t.Error(err)
	}
	runs := 0
	if _, _, err := m.Derive(f, at(0, 1, &runs)); err != nil || runs != 1 {
		t.Error(err, runs)
	}
}

// zeros is a file without end.
type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

func TestTooLarge(t *testing.T) {
	m := InMemory("test", 1<<20)
	_, _, err := m.Derive(File{zeros{}, 1 << 40, 0}, func(r io.ReaderAt) ([]byte, error) {
		_, err := io.Copy(io.Discard, io.NewSectionReader(r, 0, 1<<40))
		return nil, err
	})
	if !errors.Is(err, ErrTooLarge) {
		t.Error(err)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	s := newMemory(1000)
	for i := range 100 {
		_ = s.put(fmt.Sprint(i), make([]byte, 90))
		_, _ = s.get("0") // stays
		if n := s.entries.Len(); s.room < 0 || s.room != 1000-90*int64(n) {
			t.Fatalf("%d entries, room for %d bytes", n, s.room)
		}
	}
	if e, _ := s.get("0"); e == nil {
		t.Error("what was used last is gone")
	}
	if e, _ := s.get("50"); e != nil {
		t.Error("what was not used is there")
	}
}

func TestDirectoryIsBounded(t *testing.T) {
	const limit = 64 << 10
	d, err := openDirectory(filepath.Join(t.TempDir(), "cache"), limit, t.FailNow)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	other := filepath.Join(d.File().Name(), "not ours")
	if err := os.WriteFile(other, make([]byte, 2*limit), 0o600); err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-time.Hour)
	part := filepath.Join(d.File().Name(), "left"+partSuffix)
	if err := errors.Join(os.WriteFile(part, nil, 0o600), os.Chtimes(part, long, long)); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		if err := d.write(fmt.Sprintf("%064d", i), make([]byte, 1000)); err != nil {
			t.Fatal(err)
		}
		// Times of files are of the kernel's tick: set them apart.
		at := long.Add(time.Duration(i) * time.Second)
		_ = os.Chtimes(filepath.Join(d.File().Name(), fmt.Sprintf("%064d", i)+entrySuffix), at, at)
		if e, err := d.get(fmt.Sprintf("%064d", 0)); err != nil || e == nil { // stays
			t.Fatalf("after %d: %v", i, err)
		}
		files, err := d.list()
		total := int64(0)
		for _, f := range files {
			total += f.Size()
		}
		if err != nil || total > limit {
			t.Fatalf("%d bytes, %v", total, err)
		}
	}
	if e, _ := d.get(fmt.Sprintf("%064d", 10)); e != nil {
		t.Error("what was not used is there")
	}
	if e, _ := d.get(fmt.Sprintf("%064d", 99)); e == nil {
		t.Error("what was written last is gone")
	}
	if _, err := os.Stat(part); err == nil {
		t.Error("what a crash left is there")
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
}

// What is not the memo's own is not opened, and not left in the memo's way.
func TestDamagedAndForeignEntries(t *testing.T) {
	b := content(1, 3*blockSize)
	for what, damage := range map[string]func(path string) error{
		"flipped bit": func(path string) error {
			e, err := os.ReadFile(path)
			e[len(e)-1] ^= 1
			return errors.Join(err, os.WriteFile(path, e, 0o600))
		},
		"cut short":          func(path string) error { return os.Truncate(path, 50) },
		"empty":              func(path string) error { return os.Truncate(path, 0) },
		"huge":               func(path string) error { return os.Truncate(path, 1<<40) },
		"readable by others": func(path string) error { return os.Chmod(path, 0o644) },
		"another entry's": func(path string) error {
			m, err := Open(t.TempDir()+"/other", "test", 8<<20)
			if err != nil {
				return err
			}
			defer m.Close()
			runs := 0
			other := content(2, 3*blockSize)
			if _, _, err := m.Derive(fileOf(other), at(0, 1, &runs)); err != nil {
				return err
			}
			settle(m)
			name, _ := m.name(fileOf(other))
			return os.Rename(filepath.Join(m.store.(*directory).File().Name(), name+entrySuffix), path)
		},
		"symbolic link": func(path string) error {
			return errors.Join(os.Rename(path, path+"2"), os.Symlink(path+"2", path))
		},
		"pipe": func(path string) error {
			return errors.Join(os.Remove(path), unix.Mkfifo(path, 0o600))
		},
	} {
		t.Run(what, func(t *testing.T) {
			m, err := Open(filepath.Join(t.TempDir(), "cache"), "test", 8<<20)
			if err != nil {
				t.Fatal(err)
			}
			defer m.Close()
			runs := 0
			derive := at(blockSize, 9, &runs)
			want, _, err := m.Derive(fileOf(b), derive)
			settle(m)
			if err != nil {
				t.Fatal(err)
			}
			name, _ := m.name(fileOf(b))
			if err := damage(filepath.Join(m.store.(*directory).File().Name(), name+entrySuffix)); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time it has been replaced
				got, _, err := m.Derive(fileOf(b), derive)
				settle(m)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatal(got, err)
				}
			}
			if runs != 2 {
				t.Errorf("derived %d times", runs)
			}
			if n := m.Loss()[lossBad].Value; n != 1 {
				t.Errorf("counted %d times", n)
			}
		})
	}
}

func TestForeignDirectory(t *testing.T) {
	for what, make := range map[string]func(path string) error{
		"others may look in": func(path string) error { return errors.Join(os.Mkdir(path, 0o700), os.Chmod(path, 0o755)) },
		"symbolic link":      func(path string) error { return os.Symlink(t.TempDir(), path) },
		"file":               func(path string) error { return os.WriteFile(path, nil, 0o600) },
		"another user's": func(path string) error {
			if os.Geteuid() != 0 {
				return errors.Join(os.Mkdir(path, 0o777), os.Chmod(path, 0o777))
			}
			return errors.Join(os.Mkdir(path, 0o700), os.Chown(path, 12345, 12345))
		},
	} {
		path := filepath.Join(t.TempDir(), "cache")
		if err := make(path); err != nil {
			t.Fatal(err)
		}
		if m, err := Open(path, "test", 1<<20); err == nil {
			m.Close()
			t.Errorf("%s: opened", what)
		}
	}
}

// A directory that cannot be written to costs the memo, not the values.
func TestUnwritable(t *testing.T) {
	path := filepath.Join(t.TempDir(), "cache")
	m, err := Open(path, "test", 8<<20)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	runs := 0
	if _, _, err := m.Derive(fileOf(content(1, 10)), at(0, 1, &runs)); err != nil {
		t.Error(err)
	}
	settle(m)
	if n := m.Loss()[lossFailed].Value; n != 1 {
		t.Errorf("counted %d times", n)
	}
}

func FuzzUnseal(f *testing.F) {
	r := newRecorder(fileOf(content(1, 4*blockSize)))
	_, _ = r.ReadAt(make([]byte, 9), 3*blockSize)
	sealed, _, err := seal("name", r, []byte("value"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed[headSize:])
	f.Fuzz(func(t *testing.T, rest []byte) {
		b := append(append([]byte(magic), make([]byte, 2*sha256.Size)...), rest...)
		check := checksum("name", b)
		copy(b[len(magic):], check[:])
		e, err := unseal("name", b)
		if err != nil {
			return
		}
		_, _ = e.content("name", fileOf(content(1, 4*blockSize)))
	})
}
