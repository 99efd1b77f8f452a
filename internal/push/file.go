package push

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/atomicfile"
)

// A file of the queue has a head of headSize bytes, the request, and the SHA-256 of both.
// The head is magic, then in little endian: sequence number, time made in nanoseconds
// since 1970, profiles, and bytes of the request, 8 bytes each.
const (
	magic    = "gmpush1\n"
	headSize = len(magic) + 4*8
	suffix   = ".push"
	partial  = ".part"
	noFollow = unix.O_NOFOLLOW | unix.O_NONBLOCK
)

var errDamaged = errors.New("it is not as it was written")

func fileName(sequence uint64) string { return fmt.Sprintf("%016x%s", sequence, suffix) }

func fileSize(b *batch) int64 { return int64(headSize + len(b.body) + sha256.Size) }

// writeFile writes a batch whole, or not at all: it is on disk when it has its name.
func writeFile(root *os.Root, sequence uint64, b *batch) (err error) {
	data := make([]byte, 0, fileSize(b))
	data = append(data, magic...)
	for _, v := range []uint64{sequence, uint64(b.made.UnixNano()), uint64(b.profiles), uint64(len(b.body))} {
		data = binary.LittleEndian.AppendUint64(data, v)
	}
	data = append(data, b.body...)
	sum := sha256.Sum256(data)
	data = append(data, sum[:]...)

	name := fileName(sequence)
	f, err := root.OpenFile(name+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL|noFollow, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = root.Remove(name + partial)
		}
	}()
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := root.Rename(name+partial, name); err != nil {
		return err
	}
	syncFolder(root)
	return nil
}

// readFile reads a batch, if it is what writeFile wrote, as this user.
func readFile(root *os.Root, sequence uint64) (*batch, error) {
	f, err := root.OpenFile(fileName(sequence), os.O_RDONLY|noFollow, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	// A Root follows links inside itself.
	named, err := root.Lstat(fileName(sequence))
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !os.SameFile(info, named) || !info.Mode().IsRegular() || info.Mode().Perm()&0o077 != 0 || int(st.Uid) != os.Geteuid() {
		return nil, errDamaged
	}
	data, err := io.ReadAll(io.LimitReader(f, int64(headSize+maxBody+sha256.Size)+1))
	if err != nil {
		return nil, err
	}
	n := len(data) - sha256.Size
	if n < headSize || !bytes.HasPrefix(data, []byte(magic)) {
		return nil, errDamaged
	}
	if sum := sha256.Sum256(data[:n]); !bytes.Equal(sum[:], data[n:]) {
		return nil, errDamaged
	}
	var v [4]uint64
	for i := range v {
		v[i] = binary.LittleEndian.Uint64(data[len(magic)+8*i:])
	}
	if v[0] != sequence || v[3] != uint64(n-headSize) || v[2] > uint64(n) {
		return nil, errDamaged
	}
	return &batch{profiles: int(v[2]), made: time.Unix(0, int64(v[1])), body: data[headSize:n]}, nil
}

// ownFolder opens a folder that is this user's, and that nobody else can write to.
func ownFolder(dir string) (*os.Root, error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	f, err := root.Open(".")
	if err != nil {
		root.Close()
		return nil, err
	}
	defer f.Close()
	if err := atomicfile.Own(f); err != nil {
		root.Close()
		return nil, fmt.Errorf("queue: %w", err)
	}
	return root, nil
}

// syncFolder puts a folder's names on disk, where the file system can.
func syncFolder(root *os.Root) {
	if f, err := root.Open("."); err == nil {
		_ = f.Sync()
		f.Close()
	}
}

// flock takes f for this process, without waiting.
func flock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
