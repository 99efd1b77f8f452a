// Package tenants puts processes of a test into control groups.
package tenants

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
	"github.com/gpumemtrace/gpumemtrace/internal/source/tenant"
)

// ByUser makes this process, and those that it starts from now on, count for their users until the
// test ends: it leaves the control groups, if they say whose it is. It takes root.
func ByUser(t testing.TB) {
	t.Helper()
	user, err := proc.User(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := tenant.NumberOf(os.Getpid()); err == nil && n == user {
		return
	}
	groups, err := proc.Cgroups(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range groups {
		if g.Path == "/" {
			continue
		}
		root := mount(t, g.Hierarchy)
		enter(t, root)
		t.Cleanup(func() { enter(t, filepath.Join(root, g.Path)) })
	}
	if n, err := tenant.NumberOf(os.Getpid()); err != nil || n != user {
		t.Skipf("the control groups of this machine make all users one tenant (%s), %v", tenant.Name(n), err)
	}
}

// Container makes the control group of a container, in which a user may make others, and returns its
// folder. What runs there is killed when the test ends.
func Container(t testing.TB, user int) string {
	t.Helper()
	dir := filepath.Join(mount(t, ""), "docker", fmt.Sprintf("%064x", os.Getpid()))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Skipf("no control groups can be made: %v", err)
	}
	t.Cleanup(func() {
		_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		remove(t, dir)
		_ = os.Remove(filepath.Dir(dir)) // unless a runtime has containers there
	})
	for _, path := range []string{dir, filepath.Join(dir, "cgroup.procs")} {
		if err := os.Chown(path, user, user); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// remove removes a control group and all below it, once their processes have ended.
func remove(t testing.TB, dir string) {
	t.Helper()
	below, err := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
	if err != nil {
		t.Error(err)
	}
	for _, path := range below {
		remove(t, filepath.Dir(path))
	}
	for range 600 {
		if err = os.Remove(dir); !errors.Is(err, syscall.EBUSY) {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if err != nil {
		t.Error(err)
	}
}

// mount mounts a hierarchy of control groups, "" for the unified one, until the test ends.
func mount(t testing.TB, hierarchy string) string {
	t.Helper()
	kind, options := "cgroup2", ""
	if hierarchy != "" {
		kind, options = "cgroup", "none,"+hierarchy
		if !strings.HasPrefix(hierarchy, "name=") {
			options = hierarchy
		}
	}
	dir, err := os.MkdirTemp("", "cgroup")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(dir) })
	if err := unix.Mount("none", dir, kind, 0, options); err != nil {
		t.Skipf("control groups cannot be mounted: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Log(err)
	}
	return dir
}

func enter(t testing.TB, dir string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
		t.Error(err)
	}
}
