//go:build linux

package atomicfile

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A directory is this user's own if nobody else may write to it, whoever may read it.
func TestOwn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode fs.FileMode
		user int
		says string
	}{
		{0o700, 0, ""},
		{0o755, 0, ""},
		{0o770, 0, "chmod go-w"},
		{0o702, 0, "chmod go-w"},
		{fs.ModeSticky | 0o777, 0, "chmod go-w"},
		{0o700, 65534, "belongs to user 65534"},
	} {
		if err := os.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		if c.user != 0 {
			if err := os.Chown(dir, c.user, -1); err != nil {
				t.Skipf("only root gives a directory away: %v", err)
			}
		}
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		err = Own(f)
		f.Close()
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), dir)) {
			t.Errorf("mode %v of user %d: %v, want %q", c.mode, c.user, err, c.says)
		}
	}
}
