package unwind

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/filememo"
	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func TestPackagesOf(t *testing.T) {
	for library, want := range map[string]string{
		"/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so":           "/venv/lib/python3.12/site-packages",
		"/venv/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12":    "/venv/lib/python3.12/site-packages",
		"/usr/lib/python3/dist-packages/torch/_C.cpython-311-x86_64-linux-gnu.so": "/usr/lib/python3/dist-packages",
		"/opt/site-packages/jax_plugins/xla_cuda13/xla_cuda_plugin.so":            "/opt/site-packages",
		"/venv/lib/python3.12/site-packages/torchvision/_C.so":                    "",
		"/venv/lib/python3.12/site-packages/numpy/core/_multiarray_umath.so":      "",
		"/usr/lib/x86_64-linux-gnu/libc.so.6":                                     "",
		"/torch/lib/libtorch.so":                                                  "",
		"":                                                                        "",
	} {
		if got := packagesOf(library); got != want {
			t.Errorf("%s: %q, want %q", library, got, want)
		}
	}
}

var errNotRemembered = errors.New("not remembered")

// remembered reports whether the memo has the table of a file.
func remembered(t *testing.T, memo *filememo.Memo, path string) bool {
	t.Helper()
	f, err := proc.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, _, err = memo.Derive(filememo.File{ReaderAt: f, Size: f.Size, Owner: f.Owner}, func(io.ReaderAt) ([]byte, error) { return nil, errNotRemembered })
	return err == nil
}

// place copies this program, code enough, to a path.
func place(t *testing.T, path string) {
	t.Helper()
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, append(self, path...), 0o644)); err != nil {
		t.Fatal(err)
	}
}

// The libraries of wheels beside one that is mapped are remembered, and nothing else is
// opened: what a hostile process has there might hold who opens it.
func TestAhead(t *testing.T) {
	base := filepath.Join(t.TempDir(), "site-packages")
	siblings := []string{"torch/lib/libtorch_cuda.so", "nvidia/cublas/lib/libcublas.so.12", "jax_plugins/xla/plugin.so"}
	others := []string{"torch/lib/notes.txt", "numpy/lib/libnumpy.so"}
	for _, name := range append(siblings, others...) {
		place(t, filepath.Join(base, name))
	}
	if err := errors.Join(
		unix.Mkfifo(filepath.Join(base, "torch/lib/pipe.so"), 0o600),
		os.Symlink("/dev/zero", filepath.Join(base, "torch/lib/zero.so")),
		os.Symlink("loop.so", filepath.Join(base, "torch/lib/loop.so")),
		os.Mkdir(filepath.Join(base, "torch/lib/directory.so"), 0o700),
		os.WriteFile(filepath.Join(base, "torch/lib/empty.so"), nil, 0o600),
		os.WriteFile(filepath.Join(base, "torch/lib/text.so"), []byte("INPUT(libc.so.6)"), 0o600),
		os.Truncate(filepath.Join(base, "numpy/lib/libnumpy.so"), 4096),
	); err != nil {
		t.Fatal(err)
	}
	a := newAhead(filememo.InMemory(tableKind, memoryLimit))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		a.run(ctx)
	}()
	a.request(os.Getpid(), []string{"/usr/lib/libc.so.6", filepath.Join(base, "torch/lib/libtorch.so")}, nil)
	for _, name := range siblings {
		for end := time.Now().Add(5 * time.Minute); !remembered(t, a.memo, filepath.Join(base, name)); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s is not remembered", name)
			}
		}
	}
	for _, name := range others {
		if remembered(t, a.memo, filepath.Join(base, name)) {
			t.Errorf("%s is remembered", name)
		}
	}
	cancel()
	<-ended
}

// The end of the tracer does not wait for a library.
func TestAheadEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := newPaced(ctx, zeroFile{})
	if _, err := io.Copy(io.Discard, io.NewSectionReader(p, 0, 1<<40)); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

type zeroFile struct{}

func (zeroFile) ReadAt(p []byte, _ int64) (int, error) { clear(p); return len(p), nil }

// A process that has many packages delays nobody.
func TestAheadIsBounded(t *testing.T) {
	a := newAhead(filememo.InMemory(tableKind, memoryLimit))
	var libraries []string
	for i := range 2 * maxWaitingPackages {
		libraries = append(libraries, filepath.Join("/", string(rune('A'+i%26)), string(rune('A'+i/26)), "site-packages/torch/lib/a.so"))
	}
	for range 3 {
		a.request(os.Getpid(), libraries, nil)
	}
	if len(a.wanted) != maxWaitingPackages || a.dropped.Load() != 2*maxWaitingPackages {
		t.Errorf("%d wait, %d dropped", len(a.wanted), a.dropped.Load())
	}
	for i := range 2 * maxKnownPackages {
		a.markSeen(packagesKey{proc.FileID{Ino: uint64(i)}, ""})
		if len(a.seen) > maxKnownPackages {
			t.Fatal(len(a.seen))
		}
	}
}
