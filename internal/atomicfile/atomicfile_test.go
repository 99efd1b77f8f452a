//go:build linux

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func text(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}

// wantDir checks that dir holds these files and contents and nothing else.
func wantDir(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if _, ok := want[e.Name()]; !ok {
			t.Errorf("%s is left over", e.Name())
		}
	}
	for name, content := range want {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != content {
			t.Errorf("%s holds %q (%v), want %q", name, got, err, content)
		}
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	if err := Write(path, false, text("one")); err != nil {
		t.Fatal(err)
	}
	wantDir(t, dir, map[string]string{"out": "one"})

	if err := Write(path, false, text("two")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("second write without force: %v", err)
	}
	wantDir(t, dir, map[string]string{"out": "one"})

	if err := Write(path, true, text("three")); err != nil {
		t.Fatal(err)
	}
	wantDir(t, dir, map[string]string{"out": "three"})
}

func TestWriteContentFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	broken := errors.New("broken")
	fail := func(w io.Writer) error {
		io.WriteString(w, "half of ")
		return broken
	}
	if err := Write(path, false, fail); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	wantDir(t, dir, nil)
	os.WriteFile(path, []byte("old"), 0o644)
	if err := Write(path, true, fail); !errors.Is(err, broken) {
		t.Errorf("got %v, want %v", err, broken)
	}
	wantDir(t, dir, map[string]string{"out": "old"})
}

// TestRace: a file that another program creates while content is written
// stays, without force.
func TestRace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "out")
	err := Write(path, false, func(w io.Writer) error {
		io.WriteString(w, "mine")
		return os.WriteFile(path, []byte("theirs"), 0o644)
	})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("got %v, want %v", err, fs.ErrExist)
	}
	wantDir(t, dir, map[string]string{"out": "theirs"})
}

func TestMode(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o027))
	path := filepath.Join(t.TempDir(), "out")
	mode := func() fs.FileMode {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		return info.Mode().Perm()
	}
	if err := Write(path, false, text("")); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != 0o640 {
		t.Errorf("new file has mode %v, want 0640", got)
	}
	os.Chmod(path, 0o600)
	if err := Write(path, true, text("")); err != nil {
		t.Fatal(err)
	}
	if got := mode(); got != 0o600 {
		t.Errorf("replaced file has mode %v, want 0600 as before", got)
	}
}

// Another user's file lends its permissions to nobody: what replaces it is open to no
// more than a new file.
func TestModeOfAnotherUsers(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	defer unix.Umask(unix.Umask(0o022))
	for before, want := range map[fs.FileMode]fs.FileMode{0o666: 0o644, 0o777: 0o644, 0o600: 0o600} {
		path := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(path, 65534, 65534), os.Chmod(path, before)); err != nil {
			t.Fatal(err)
		}
		if err := Write(path, true, text("one")); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("what replaced a file of mode %v has %v (%v), want %v", before, info.Mode(), err, want)
		}
	}
}

func TestSymlinkIsReplaced(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	victim := filepath.Join(other, "victim")
	os.WriteFile(victim, []byte("keep me"), 0o600)
	path := filepath.Join(dir, "out")
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, false, text("new")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("without force: %v", err)
	}
	if err := Write(path, true, text("new")); err != nil {
		t.Fatal(err)
	}
	wantDir(t, other, map[string]string{"victim": "keep me"})
	if info, _ := os.Lstat(path); !info.Mode().IsRegular() {
		t.Errorf("%v is still a link", info.Mode())
	}
	wantDir(t, dir, map[string]string{"out": "new"})
}

// TestNotAFile: what a root user must not replace by a regular file.
func TestNotAFile(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	os.Symlink(fifo, link)
	for _, path := range []string{dir, fifo, link, os.DevNull} {
		before, _ := os.Lstat(path)
		for _, force := range []bool{false, true} {
			if Check(path, force) == nil {
				t.Errorf("Check(%s, %v) has no objection", path, force)
			}
			if Write(path, force, text("x")) == nil {
				t.Errorf("Write(%s, %v) succeeded", path, force)
			}
		}
		if after, _ := os.Lstat(path); !os.SameFile(before, after) {
			t.Errorf("%s was replaced", path)
		}
	}
}

func TestCheck(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	os.WriteFile(file, []byte("old"), 0o644)
	for _, c := range []struct {
		path  string
		force bool
		want  error // nil for none
	}{
		{filepath.Join(dir, "new"), false, nil},
		{file, true, nil},
		{file, false, fs.ErrExist},
		{filepath.Join(dir, "missing", "new"), false, fs.ErrNotExist},
		{filepath.Join(file, "new"), false, unix.ENOTDIR},
	} {
		if err := Check(c.path, c.force); !errors.Is(err, c.want) {
			t.Errorf("Check(%s, %v) = %v, want %v", c.path, c.force, err, c.want)
		}
	}
	wantDir(t, dir, map[string]string{"file": "old"})
}
