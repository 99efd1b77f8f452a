package push

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/loss"
)

func open(t *testing.T, dir string, most int64) (*queue, *loss.Set) {
	t.Helper()
	set := loss.New(causes)
	q, err := openQueue(dir, most, set)
	if err != nil {
		t.Fatal(err)
	}
	return q, set
}

func batchOf(n int, body string) *batch {
	return &batch{profiles: n, made: worldBegan, body: []byte(body)}
}

// files returns the names in a folder.
func files(t *testing.T, dir string) (out []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		out = append(out, e.Name())
	}
	return out
}

func first(q *queue) *batch {
	b, _ := q.first()
	return b
}

// What was put and not done is there after a restart, in order, to the byte.
func TestQueueRestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "q")
	q, _ := open(t, dir, 1<<20)
	for _, body := range []string{"one", "two", "three"} {
		q.put(batchOf(2, body))
	}
	if b := first(q); string(b.body) != "one" {
		t.Fatalf("%q is first", b.body)
	}
	q.done()
	for _, name := range files(t, dir) {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fileName(9)+partial), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}

	q, set := open(t, dir, 1<<20)
	q.put(batchOf(1, "four"))
	for _, want := range []string{"two", "three", "four"} {
		b := first(q)
		if b == nil || string(b.body) != want || !b.made.Equal(worldBegan) || (b.profiles == 1) != (want == "four") {
			t.Fatalf("%+v, want %s", b, want)
		}
		q.done()
	}
	if b := first(q); b != nil {
		t.Errorf("%q is left", b.body)
	}
	if left := files(t, dir); len(left) != 0 {
		t.Errorf("files %q", left)
	}
	lossless(t, set.Counters())
}

// The oldest go first when there is no room, but not what is being sent, and each profile
// counts, those of an earlier process too.
func TestQueueFull(t *testing.T) {
	for name, dir := range map[string]string{"memory": "", "disk": filepath.Join(t.TempDir(), "q")} {
		t.Run(name, func(t *testing.T) {
			size := fileSize(batchOf(1, "body0"))
			q, set := open(t, dir, 3*size)
			q.put(batchOf(5, "body0"))
			if dir != "" {
				q, set = open(t, dir, 3*size)
			}
			q.put(batchOf(1, "body1"))
			q.put(batchOf(1, "body2"))
			q.put(batchOf(1, "body3")) // drops 0
			if b := first(q); string(b.body) != "body1" {
				t.Fatalf("%q is first", b.body)
			}
			q.put(batchOf(1, "body4")) // drops 2
			q.put(batchOf(7, strings.Repeat("x", int(3*size))))
			q.done()
			for _, want := range []string{"body3", "body4"} {
				if b := first(q); b == nil || string(b.body) != want {
					t.Fatalf("%v, want %s", b, want)
				}
				q.done()
			}
			if n := lossOf(t, set.Counters(), "push_queue_full"); n != 5+1+7 {
				t.Errorf("%d dropped", n)
			}
			if _, bytes := q.waiting(); bytes != 0 {
				t.Errorf("%d bytes wait", bytes)
			}
		})
	}
}

// A file that is not what was written is dropped and counted, whatever it is.
func TestQueueDamaged(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string, data []byte) error{
		"a bit": func(_ *testing.T, path string, data []byte) error {
			data[len(data)/2] ^= 1
			return os.WriteFile(path, data, 0o600)
		},
		"cut": func(_ *testing.T, path string, data []byte) error {
			return os.WriteFile(path, data[:len(data)-1], 0o600)
		},
		"empty": func(_ *testing.T, path string, _ []byte) error { return os.WriteFile(path, nil, 0o600) },
		"huge":  func(_ *testing.T, path string, _ []byte) error { return os.Truncate(path, 1<<40) },
		"for all to read": func(_ *testing.T, path string, _ []byte) error {
			return os.Chmod(path, 0o644)
		},
		"another's number": func(_ *testing.T, path string, _ []byte) error {
			return os.Rename(path, filepath.Join(filepath.Dir(path), fileName(5)))
		},
		"a link": func(_ *testing.T, path string, data []byte) error {
			other := filepath.Join(filepath.Dir(path), "other")
			if err := os.Rename(path, other); err != nil {
				return err
			}
			return os.Symlink("other", path)
		},
		"a pipe": func(_ *testing.T, path string, _ []byte) error {
			if err := os.Remove(path); err != nil {
				return err
			}
			return unix.Mkfifo(path, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "q")
			q, _ := open(t, dir, 1<<41)
			q.put(batchOf(1, "first"))
			path := filepath.Join(dir, fileName(1))
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(t, path, data); err != nil {
				t.Fatal(err)
			}
			q, set := open(t, dir, 1<<41)
			q.put(batchOf(1, "second"))
			if b := first(q); b == nil || string(b.body) != "second" {
				t.Errorf("%+v", b)
			}
			if n := lossOf(t, set.Counters(), "push_queue_damaged"); n != 1 {
				t.Errorf("%d damaged", n)
			}
		})
	}
}

// What cannot be written waits in memory, and is lost only when the process ends.
func TestQueueUnwritable(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "q")
	q, set := open(t, dir, 1<<20)
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	q.put(batchOf(3, "one"))
	q.put(batchOf(4, "two"))
	if b := first(q); b == nil || string(b.body) != "one" {
		t.Fatalf("%+v", b)
	}
	q.done()
	q.close()
	if all := set.Counters(); lossOf(t, all, "push_queue_unwritten") != 7 || lossOf(t, all, "push_unsent") != 4 {
		t.Errorf("%+v", all)
	}
}

// A folder that another user could change is not taken, nor one that another process has.
func TestQueueOwner(t *testing.T) {
	dir := t.TempDir()
	unlock, err := lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("locked twice: %v", err)
	}
	unlock()
	if unlock, err := lock(dir); err != nil {
		t.Error(err)
	} else {
		unlock()
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := lock(dir); err == nil {
		t.Error("a folder of everybody was taken")
	}
}

// A process that is killed while it writes, sends and removes leaves requests that are
// whole, each once.
func TestQueueKilled(t *testing.T) {
	if dir := os.Getenv("GPUMEMTRACE_TEST_QUEUE"); dir != "" {
		fill(t, dir)
		return
	}
	dir := filepath.Join(t.TempDir(), "q")
	seen := map[string]bool{}
	for range 8 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestQueueKilled$")
		cmd.Env = append(os.Environ(), "GPUMEMTRACE_TEST_QUEUE="+dir)
		var out bytes.Buffer
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(60 * time.Millisecond)
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
	}
	q, set := open(t, dir, 1<<30)
	n := 0
	for b := first(q); b != nil; b = first(q) {
		if seen[string(b.body)] {
			t.Errorf("%s is there twice", b.body[:40])
		}
		seen[string(b.body)] = true
		n++
		q.done()
	}
	if n == 0 {
		t.Error("nothing was left")
	}
	lossless(t, set.Counters())
}

// fill puts batches, and takes each third, until it is killed.
func fill(t *testing.T, dir string) {
	q, _ := open(t, dir, 1<<30)
	for i := 0; ; i++ {
		q.put(batchOf(1, newIdentity().String()+strings.Repeat("x", 20_000)))
		if i%3 == 0 {
			q.first()
			q.done()
		}
	}
}

// On a disk that is full nothing is left behind but what is whole, and what finds no room
// waits in memory.
func TestQueueFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,mode=700"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("mount tmpfs: %v", err)
		}
		t.Skipf("mount tmpfs: %v (needs root)", err)
	}
	defer func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	q, set := open(t, filepath.Join(dir, "q"), 1<<20)
	for range 10 {
		q.put(batchOf(1, strings.Repeat("x", 20_000)))
	}
	unwritten := lossOf(t, set.Counters(), "push_queue_unwritten")
	if left := files(t, filepath.Join(dir, "q")); unwritten == 0 || len(left) != 10-int(unwritten) || strings.Contains(strings.Join(left, " "), partial) {
		t.Errorf("%d unwritten, files %q", unwritten, left)
	}
	n := 0
	for first(q) != nil {
		q.done()
		n++
	}
	q.close()
	if n != 10 {
		t.Errorf("%d batches", n)
	}
	lossless(t, set.Counters(), "push_queue_unwritten")
}
