package probes

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// silentFiles mounts a file system with n files that are named like libcuda, can be
// opened and mapped by everybody, and do not answer who reads them. It returns their
// paths. The program that serves it is one of its own: its end sets those free that wait,
// who cannot be killed.
func silentFiles(t *testing.T, n int) (paths []string) {
	t.Helper()
	dir, bin := open2all(t), filepath.Join(t.TempDir(), "silent")
	compile(t, bin, "silent.c")
	p := spawn(t, exec.Command(bin, dir), "")
	if !p.out.Scan() || p.out.Text() != "up" {
		t.Skip("no file systems in user space here")
	}
	t.Cleanup(func() {
		p.cmd.Process.Kill()
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	for i := range n {
		paths = append(paths, filepath.Join(dir, fmt.Sprintf("libcuda.so.%d", i)))
	}
	return paths
}
