package probes

import (
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/gpumemtrace/gpumemtrace/internal/source/proc"
)

func TestHarmsSeccomp(t *testing.T) {
	for release, want := range map[string]bool{
		"5.15.0-1-generic": false, "6.10.14": false,
		"6.11": true, "6.11.0": true, "6.11.0-29-generic": true, "6.11.11": true, "6.11-rc1": true,
		"6.12": true, "6.12.0-55.el10.x86_64": true, "6.12.9+bpo-amd64": true, "6.12.13": true,
		"6.12.14": false, "6.12.14-1-lts": false, "6.12.102": false,
		"6.13.0-rc7": true, "6.13.2-200.fc41.x86_64": true, "6.13.3": false, "6.13.12": false,
		"6.14.0-37-generic": false, "6.18.44": false, "7.0.1": false, "7.12.1": false, "16.12.1": false,
		"": false, "gVisor": false,
	} {
		if got := harmsSeccomp(release, "amd64"); got != want {
			t.Errorf("%q: %t, want %t", release, got, want)
		}
		if harmsSeccomp(release, "arm64") {
			t.Errorf("%q: true on arm64, which has no such system call", release)
		}
	}
}

// underFilter runs f while one thread of this process is under a seccomp filter.
func underFilter(t *testing.T, f func()) {
	t.Helper()
	installed, done := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		allow := unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
		prog := unix.SockFprog{Len: 1, Filter: &allow}
		err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
		if err == nil {
			err = unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, uintptr(unsafe.Pointer(&prog)), 0, 0)
		}
		installed <- err
		<-done
	}()
	if err := <-installed; err != nil {
		t.Fatalf("install a seccomp filter: %v", err)
	}
	defer close(done)
	f()
}

func TestCheckSeccomp(t *testing.T) {
	const harmful, fixed, cannotConfine = "6.12.9-amd64", "6.12.14-amd64", "6.11.0-29-generic"
	self := os.Getpid()
	check := func(release string, pid int, confined bool, says ...string) {
		t.Helper()
		err := checkSeccomp(release, "amd64", pid, confined)
		if err == nil || len(says) == 0 {
			if err != nil || len(says) != 0 {
				t.Errorf("%s, process %d, confined %t: %v, want %q", release, pid, confined, err, says)
			}
			return
		}
		for _, s := range append(says, release, "6.12.14", "6.13.3", "6.14") {
			if !strings.Contains(err.Error(), s) {
				t.Errorf("%s, process %d, confined %t: %v, want %q in it", release, pid, confined, err, s)
			}
		}
	}
	if !proc.Filtered(self) { // as in a container
		check(harmful, self, true)
	}
	check(harmful, 0, true)
	check(harmful, 0, false, "container", "--no-follow")
	check(cannotConfine, 0, false, "container", "cannot be confined")
	underFilter(t, func() {
		check(harmful, self, true, "trace process", "is under a seccomp filter")
		check(cannotConfine, self, true, "trace process", "is under a seccomp filter")
		check(harmful, 0, true)
		check(harmful, 1<<30, true) // no such process
		check(fixed, self, false)
		check("6.10.1", self, false)
		if err := checkSeccomp(harmful, "arm64", self, false); err != nil {
			t.Errorf("arm64: %v", err)
		}
	})
}
