package probes

import (
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A process that maps files without a pause does not keep the sideband from its
// end: here each mapping that is told of makes the next.
func TestSidebandHalts(t *testing.T) {
	needTracing(t)
	s, err := openSideband()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer self.Close()
	again := func() {
		if b, err := unix.Mmap(int(self.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE); err == nil {
			unix.Munmap(b)
		}
	}
	var told atomic.Int64
	var enough atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // for good: of one CPU, whose buffer is never empty
		var one unix.CPUSet
		one.Set(0)
		if err := unix.SchedSetaffinity(0, &one); err != nil {
			t.Error(err)
		}
		s.run(func(m mapping) bool {
			if m.pid == os.Getpid() && !enough.Load() {
				told.Add(1)
				again()
			}
			return false
		}, func(uint64) {})
	}()
	eventually(t, "mappings", func() bool { again(); return told.Load() > 1000 })
	s.halt()
	select {
	case <-done:
	case <-time.After(5 * time.Minute):
		t.Error("it does not end")
		enough.Store(true)
		<-done
	}
	s.close()
}
