package proc

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// pipes starts a command, and returns what it reads and writes after its first line.
func pipes(t *testing.T, cmd *exec.Cmd) (pid int, in io.Writer, out *bufio.Reader) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("not root")
	}
	cmd.Stderr = os.Stderr
	w, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	r, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		w.Close()
		cmd.Wait()
	})
	fmt.Fprintln(w)
	out = bufio.NewReader(r)
	if _, err := out.ReadString('\n'); err != nil {
		t.Skip("it did not start: ", err) // namespaces are not allowed
	}
	return cmd.Process.Pid, w, out
}

// waiting starts a command that waits, as a user or in namespaces.
func waiting(t *testing.T, attr *syscall.SysProcAttr, name string, args ...string) int {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = attr
	pid, _, _ := pipes(t, cmd)
	return pid
}

// A user's processes are the user's, whoever they say they are in a namespace that
// the user made.
func TestUser(t *testing.T) {
	const uid = 65533
	one := syscall.SysProcIDMap{HostID: uid, Size: 1}
	ids := func(inside int) []syscall.SysProcIDMap {
		m := one
		m.ContainerID = inside
		return []syscall.SysProcIDMap{m}
	}
	for name, pid := range map[string]int{
		"plain":     waiting(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, "cat"),
		"namespace": waiting(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, "unshare", "--user", "cat"),
		"nested":    waiting(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}, "unshare", "--user", "--map-root-user", "unshare", "--user", "cat"),
		// Root made it: the user in it counts.
		"of root": waiting(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids(0), GidMappings: ids(0), Credential: &syscall.Credential{Uid: 0, Gid: 0, NoSetGroups: true}}, "cat"),
	} {
		if got, err := User(pid); err != nil || got != uid {
			t.Errorf("%s: %d, %v, want %d", name, got, err, uid)
		}
	}
	// Another user of those that the namespace's maker was given.
	given := exec.Command("unshare", "--user", "sh", "-c", "read x; echo; read x; exec setpriv --reuid=1 cat")
	given.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	pid, in, out := pipes(t, given)
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/uid_map", pid), []byte("0 65533 1\n1 100000 10\n"), 0); err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(in, "go\nup\n")
	if line, err := out.ReadString('\n'); line != "up\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if s, err := ReadStatus(pid); err != nil || s.User != 100000 {
		t.Fatalf("%+v, %v", s, err)
	}
	if got, err := User(pid); err != nil || got != uid {
		t.Errorf("a user given to a namespace: %d, %v, want %d", got, err, uid)
	}
	if got, err := User(os.Getpid()); err != nil || got != uint32(os.Geteuid()) {
		t.Errorf("this process: %d, %v", got, err)
	}
	if _, err := User(1 << 30); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no process: %v", err)
	}
}
