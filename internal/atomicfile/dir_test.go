//go:build linux

package atomicfile

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

const stranger = 65534

// shared is a directory in which a stranger has put names that lead to a victim's.
func shared(t *testing.T) (dir, victim string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	dir, victim = filepath.Join(t.TempDir(), "shared"), t.TempDir()
	strangers := filepath.Join(dir, "directory")
	if err := errors.Join(
		os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777|fs.ModeSticky),
		os.WriteFile(filepath.Join(victim, "file"), []byte("keep me"), 0o600),
		os.Symlink(victim, filepath.Join(dir, "link")),
		os.Symlink(filepath.Join(victim, "file"), filepath.Join(dir, "file")),
		os.Symlink(filepath.Join(victim, "new"), filepath.Join(dir, "dangling")),
		os.Symlink(filepath.Join(victim, "made"), filepath.Join(dir, "missing")),
		os.Link(filepath.Join(victim, "file"), filepath.Join(dir, "hard")),
		unix.Mkfifo(filepath.Join(dir, "pipe"), 0o666),
		os.Mkdir(strangers, 0o755), os.Chown(strangers, stranger, -1),
		os.Symlink(victim, filepath.Join(strangers, "link")),
		os.Symlink("..", filepath.Join(strangers, "up")),
		os.Symlink(victim, filepath.Join(dir, "mine")),
	); err != nil {
		t.Fatal(err)
	}
	for _, link := range []string{"link", "file", "dangling", "missing", "directory/link", "directory/up"} {
		if err := os.Lchown(filepath.Join(dir, link), stranger, -1); err != nil {
			t.Fatal(err)
		}
	}
	return dir, victim
}

// A stranger's link on the way to a file is not followed, however deep it lies.
func TestStrangersLinks(t *testing.T) {
	dir, victim := shared(t)
	for path, refused := range map[string]bool{
		"link/x": true, "missing/x": true, "directory/link/x": true, "directory/up/x": true, "directory/up/link/x": true,
		"mine/x": false, "directory/x": false, "x": false, "directory/../y": false,
	} {
		full := dir + "/" + path
		err := Write(full, true, text("x"))
		if (err != nil) != refused || err != nil && (!strings.Contains(err.Error(), "belongs to user 65534") || !strings.Contains(err.Error(), full)) {
			t.Errorf("%s: %v", path, err)
		}
		if again := Check(full, true); (again != nil) != refused {
			t.Errorf("%s is checked: %v", path, again)
		}
		made, err := MakeDir(filepath.Dir(full), 0o700)
		if (err != nil) != refused {
			t.Errorf("%s: the directory is made: %v", path, err)
		}
		if err == nil {
			made.Close()
		}
	}
	wantDir(t, victim, map[string]string{"file": "keep me", "x": "x"})
}

// What a stranger has put in the place of a file is replaced, or an error, but never
// written to.
func TestStrangersFiles(t *testing.T) {
	for name, force := range map[string]bool{"file": true, "dangling": true, "hard": true, "pipe": false} {
		for what, write := range map[string]func(path string, force bool) error{
			"written": func(path string, force bool) error { return Write(path, force, text("new")) },
			"created": func(path string, force bool) error {
				return in(path, func(d *Dir, name string) error {
					f, err := d.Create(name, force)
					if err != nil {
						return err
					}
					_, err = io.WriteString(f, "new")
					return errors.Join(err, f.Close())
				})
			},
		} {
			dir, victim := shared(t)
			path := filepath.Join(dir, name)
			if err := write(path, false); err == nil {
				t.Errorf("%s is %s", name, what)
			}
			if err := write(path, true); (err == nil) != force {
				t.Errorf("%s, %s with force: %v", name, what, err)
			} else if info, err := os.Lstat(path); force && (err != nil || !info.Mode().IsRegular() || info.Size() != 3) {
				t.Errorf("%s, %s with force: %v, %v", name, what, info, err)
			}
			wantDir(t, victim, map[string]string{"file": "keep me"})
		}
	}
}

// A link of the directory's owner leads where it says: that is not a stranger's.
func TestOwnersLinks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes files of another user")
	}
	home, disk := t.TempDir(), t.TempDir()
	link := filepath.Join(home, "link")
	if err := errors.Join(os.Symlink(disk, link), os.Chown(home, stranger, -1), os.Lchown(link, stranger, -1)); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(link, "x"), false, text("x")); err != nil {
		t.Error(err)
	}
	loop := filepath.Join(home, "loop")
	if err := os.Symlink("loop", loop); err != nil {
		t.Fatal(err)
	}
	if err := Write(filepath.Join(loop, "x"), false, text("x")); !errors.Is(err, unix.ELOOP) {
		t.Error(err)
	}
	wantDir(t, disk, map[string]string{"x": "x"})
}

// A directory is the one that was opened, whatever the path leads to by now.
func TestDirStays(t *testing.T) {
	parent, other := t.TempDir(), t.TempDir()
	path, moved := filepath.Join(parent, "a", "b"), filepath.Join(parent, "moved")
	d, err := MakeDir(path, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if err := errors.Join(os.Rename(path, moved), os.Symlink(other, path), d.Write("x", false, text("x"))); err != nil {
		t.Fatal(err)
	}
	wantDir(t, moved, map[string]string{"x": "x"})
	wantDir(t, other, nil)
	if names, err := fs.ReadDir(d.FS(), "."); err != nil || len(names) != 1 {
		t.Errorf("%v, %v", names, err)
	}
	if err := d.Remove("x"); err != nil {
		t.Error(err)
	}
	wantDir(t, moved, nil)
	// A link of /proc leads elsewhere than its text says.
	if err := Write("/proc/self/cwd/dir_test.tmp", false, text("x")); err != nil {
		t.Error(err)
	}
	if err := os.Remove("dir_test.tmp"); err != nil {
		t.Error(err)
	}
}
