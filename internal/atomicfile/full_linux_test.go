package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tmpfs mounts one of the given size, to fill it or to make it read-only.
func tmpfs(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, options); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mount tmpfs: %v", err)
		}
		t.Skipf("mount tmpfs: %v (needs root)", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func TestFullDisk(t *testing.T) {
	dir := tmpfs(t, "size=64k")
	path := filepath.Join(dir, "out")
	if err := Write(path, false, text("old")); err != nil {
		t.Fatal(err)
	}
	err := Write(path, true, text(strings.Repeat("x", 1<<20)))
	if !errors.Is(err, unix.ENOSPC) {
		t.Errorf("got %v, want %v", err, unix.ENOSPC)
	}
	wantDir(t, dir, map[string]string{"out": "old"})
}

func TestReadOnlyFileSystem(t *testing.T) {
	dir := tmpfs(t, "size=64k")
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "out")
	if err := Check(path, false); !errors.Is(err, unix.EROFS) {
		t.Errorf("Check = %v, want %v", err, unix.EROFS)
	}
	if err := Write(path, false, text("x")); !errors.Is(err, unix.EROFS) {
		t.Errorf("Write = %v, want %v", err, unix.EROFS)
	}
}
