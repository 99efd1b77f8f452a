package workload

import (
	"path/filepath"
	"runtime"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gpumemtrace/gpumemtrace/internal/model/snapshot"
)

const (
	id    = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	other = "fedcba9876543210fedcba9876543210fedcba9876543210fedcba9876543210"
	uid   = "2c48913c-b29f-11e7-9350-020968147796"
)

// known is what a process's control group says of a pod.
var known = snapshot.Who{User: "root", PodUID: uid, ContainerID: id}

func finder(t *testing.T, sockets ...string) *Finder {
	t.Helper()
	f := New(sockets)
	t.Cleanup(f.Close)
	return f
}

// until asks for the names of known until done.
func until(t *testing.T, f *Finder, done func(snapshot.Who) bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Minute); !done(f.Names(known)); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not after five minutes")
		}
	}
}

// A runtime is asked once for a container of a pod, and never where there is no pod or its name is known.
func TestNames(t *testing.T) {
	var asked atomic.Int32
	socket := serveCRI(t, func(string, []byte) ([]byte, error) {
		asked.Add(1)
		return containerOf(id, podLabels(uid)), nil
	})
	f := finder(t, filepath.Join(t.TempDir(), "none"), socket)
	for _, w := range []snapshot.Who{{}, {PodUID: uid}, {ContainerID: other}, {PodUID: uid, ContainerID: other, Pod: "train-1"}} {
		if got := f.Names(w); got != (snapshot.Who{}) {
			t.Errorf("%+v of %+v", got, w)
		}
	}
	want := snapshot.Who{Namespace: "research", Pod: "train-0", Container: "worker"}
	until(t, f, func(w snapshot.Who) bool { return w == want })
	for range 100 {
		f.Names(known)
	}
	if n := asked.Load(); n != 1 {
		t.Errorf("the runtime was asked %d times for one container", n)
	}
}

// The runtime knows the container as one of another pod.
func TestLyingRuntime(t *testing.T) {
	f := finder(t, serveCRI(t, func(string, []byte) ([]byte, error) { return containerOf(id, podLabels("another")), nil }))
	until(t, f, func(w snapshot.Who) bool {
		if w != (snapshot.Who{}) {
			t.Fatalf("%+v", w)
		}
		return f.Loss()[0].Value == 1
	})
}

// A runtime that is silent keeps nobody waiting, and is not waited for at the end.
func TestSlowRuntime(t *testing.T) {
	release, asked := make(chan struct{}), make(chan struct{})
	f := finder(t, serveCRI(t, func(string, []byte) ([]byte, error) { close(asked); <-release; return nil, nil }))
	defer close(release)
	f.Names(known)
	<-asked
	if got := f.Names(known); got != (snapshot.Who{}) {
		t.Errorf("%+v", got)
	}
	f.Close()
}

// However many are asked for, so many are kept.
func TestFinderIsBounded(t *testing.T) {
	before := runtime.NumGoroutine()
	f := finder(t)
	for i := range 3 * maxContainers {
		f.Names(snapshot.Who{PodUID: uid, ContainerID: strconv.Itoa(i)})
	}
	f.mu.Lock()
	n := f.containers.Len()
	f.mu.Unlock()
	if n > maxContainers {
		t.Errorf("%d containers kept", n)
	}
	f.Close()
	// One that Close waited for is counted until it has returned.
	for end := time.Now().Add(5 * time.Minute); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), before)
		}
	}
}
